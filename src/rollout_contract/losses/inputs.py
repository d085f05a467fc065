"""How a loss reads its batch. The only way in, so that no loss can forget a guard."""

from __future__ import annotations

from torch import Tensor

from rollout_contract.errors import Violation, violation_error
from rollout_contract.kernels.masking import zero_outside
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch


def require(batch: object, schema: type[RolloutBatch], reader: str) -> None:
    """Check that ``batch`` has the fields of ``schema``, and that its seals are whole.

    A type checker asks for inheritance; here it is enough that a field of the same name has the same role and shape.

    Raises:
        MissingFieldError: it is another kind of batch; the fields that it lacks are named.
        LiveGraphError, MutatedError: a field was edited after it was validated.
    """
    if not isinstance(batch, RolloutBatch):
        hint = f"build one: {schema.__name__}(response_lengths=..., loss_mask=..., ...)"
        wrong = Violation("batch", "missing", f"a {schema.__name__}", f"a {type(batch).__name__}", hint)
        raise violation_error(reader, wrong)
    mine = type(batch).__plan__
    lacks = [n for n, spec in schema.__plan__.items() if n not in mine or mine[n].signature() != spec.signature()]
    if lacks:
        lacking = ", ".join(lacks)
        hint = f"let {type(batch).__name__} inherit from {schema.__name__}, or extend({schema.__name__}, ...)"
        wrong = Violation(
            "batch", "missing", f"a {schema.__name__}", f"a {type(batch).__name__}, which lacks {lacking}", hint
        )
        raise violation_error(reader, wrong)
    batch._verify()


def read(batch: RolloutBatch, name: str, like: Tensor | None = None) -> Tensor:
    """A field on the batch's device, in the dtype of ``like``, with 0 at every masked-out token.

    Masked entries are replaced before any arithmetic, so neither value nor gradient can see what lies there. A fixed
    field is cut off any graph once more: with checks off, this is what still stops a live one.
    """
    stored: Tensor = getattr(batch, name)
    spec = type(batch).__plan__[name]
    if spec.role is Role.FIXED and stored.requires_grad:
        stored = stored.detach()
    dtype = stored.dtype if like is None or not stored.is_floating_point() else like.dtype
    tensor = stored.to(device=batch.device, dtype=dtype)
    if spec.axis != "tokens":
        return tensor
    mask = batch.loss_mask.reshape(-1, *(1,) * (tensor.dim() - 1))
    return zero_outside(tensor, mask)
