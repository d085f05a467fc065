"""Whitening: advantages with mean 0 and variance 1 over the trained tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeFloat
from torch import Tensor

from rollout_contract.advantages.estimator import fixed
from rollout_contract.configuration import current_settings
from rollout_contract.errors import Violation, raise_violations
from rollout_contract.kernels.moments import EpsilonPlace, Moments, inverse_std, moments, segment_moments
from rollout_contract.losses.inputs import require
from rollout_contract.roles import FixedTensor
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schema.graph import cut_graph
from rollout_contract.schemas import PolicyBatch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Whitening(BaseModel):
    """How advantages are whitened.

    Attributes:
        over: all trained tokens of the ``batch`` together, or those of each ``sample`` by themselves.
        bessel: divide by n - 1 in the variance (verl, SkyRL, miles, slime, NeMo-RL's GAE) or by n (OpenRLHF, AReaL,
            NeMo-RL's REINFORCE++).
        eps: keeps the division finite.
        epsilon_in: where eps goes: ``variance``: 1 / sqrt(variance + eps) (verl, SkyRL, miles, slime); ``floor``:
            1 / sqrt(max(variance, eps)) (OpenRLHF, NeMo-RL); ``std``: 1 / (sqrt(variance) + eps) (AReaL).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    over: Literal["batch", "sample"] = "batch"
    bessel: bool = True
    eps: NonNegativeFloat = 1e-8
    epsilon_in: EpsilonPlace = "variance"


DEFAULT_WHITENING = Whitening()


def whiten(
    batch: RolloutBatch,
    advantages: Tensor,
    whitening: Whitening = DEFAULT_WHITENING,
    *,
    process_group: ProcessGroup | None = None,
) -> FixedTensor:
    """Advantages minus their mean, over their standard deviation, both of the trained tokens alone.

    Float32 keeps its precision at large means: values are shifted before they are summed. Equal advantages become
    exactly 0. Fewer than two trained tokens have no spread and are returned as they are.

    Args:
        batch: gives the mask and the samples.
        advantages: [tokens] of the batch; what lies at masked tokens is not looked at. A graph is cut, or refused,
            as by a build (``settings(live_inputs=...)``).
        whitening: the formula.
        process_group: data-parallel ranks that hold the other samples; the statistics are those of all of them. Every
            rank must take part, also one without tokens. Not with ``over="sample"``, which needs no other rank.

    Returns:
        [tokens], 0 at masked tokens.

    Raises:
        ShapeError, DTypeError, DeviceError: ``advantages`` is not a float tensor [tokens] on the batch's device.
    """
    require(batch, RolloutBatch, "whiten")
    raise_violations("whiten", _violations(batch, advantages))
    kept, live = cut_graph(PolicyBatch.__plan__["advantages"], advantages, current_settings())
    raise_violations("whiten", [] if live is None else [live])
    return whiten_where(batch, kept, batch.loss_mask, whitening, process_group)


def whiten_where(
    batch: RolloutBatch,
    advantages: Tensor,
    mask: Tensor,
    whitening: Whitening,
    process_group: ProcessGroup | None = None,
) -> FixedTensor:
    """``whiten`` over the tokens of another mask; 0 elsewhere."""
    with torch.no_grad():
        kept = advantages.where(mask, 0.0)
        found = _statistics(batch, kept, mask, whitening, process_group)
        white = found.center(kept) * inverse_std(found.variance, whitening.eps, whitening.epsilon_in)
        return fixed(white.where(found.number > 1, kept).where(mask, 0.0))


def _violations(batch: RolloutBatch, advantages: Any) -> Iterator[Violation]:
    tokens = batch.layout.num_tokens
    if not isinstance(advantages, Tensor) or list(advantages.shape) != [tokens]:
        found = (
            f"shape {list(advantages.shape)}" if isinstance(advantages, Tensor) else f"a {type(advantages).__name__}"
        )
        yield Violation("advantages", "shape", f"[{tokens} tokens]", found)
        return
    if advantages.dtype not in (torch.float32, torch.float64):
        yield Violation("advantages", "dtype", "float32 or float64", str(advantages.dtype).removeprefix("torch."))
    if advantages.device != batch.device:
        yield Violation("advantages", "device", f"{batch.device}, where the batch is", str(advantages.device))


def _statistics(
    batch: RolloutBatch, values: Tensor, mask: Tensor, whitening: Whitening, process_group: ProcessGroup | None
) -> Moments:
    if whitening.over == "sample":
        ids = batch.layout.sample_ids(values.device)
        return segment_moments(values, mask, ids, len(batch), whitening.bessel).gather(ids)

    def over_ranks(partial: Tensor, operation: Literal["sum", "max"]) -> Tensor:
        if process_group is not None:
            kind = torch.distributed.ReduceOp.SUM if operation == "sum" else torch.distributed.ReduceOp.MAX
            torch.distributed.all_reduce(partial, kind, process_group)
        return partial

    return moments(values, mask, whitening.bessel, over_ranks)
