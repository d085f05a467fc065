"""Log-probs that an engine could not give: None in a list (a NaN that became JSON null), or NaN.

By default they are refused: a filled-in number would be an invented probability. On request the token is masked out,
or gets the trainer's own ``old_log_probs``, so that its importance ratio is exactly 1. Either way it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rollout_contract.errors import Violation
from rollout_contract.schema.narrowing import narrowed, narrowing_violations
from rollout_contract.schema.plan import FieldSpec

if TYPE_CHECKING:
    from rollout_contract.schema.build import Draft


def resolve_missing(draft: Draft) -> Iterator[Violation]:
    """Apply the policy to every new log-prob field, ``old_log_probs`` first: the others may be filled from it."""
    if draft.settings.missing == "refuse":
        yield from refuse_missing(draft)
        return
    specs = [spec for spec in draft.specs(draft.fresh) if spec.may_miss_values]
    for spec in sorted(specs, key=lambda spec: spec.name != "old_log_probs"):
        where = _where_missing(draft, spec)
        if draft.settings.missing == "mask_out":
            yield from _mask_out(draft, spec, where)
        else:
            yield from _neutralise(draft, spec, where)


def _where_missing(draft: Draft, spec: FieldSpec) -> Tensor:
    tensor = draft.tensor(spec.name)
    where = torch.isnan(tensor.detach())
    if draft.missing.get(spec.name):
        index = torch.tensor(draft.missing[spec.name], device=tensor.device)
        where = where.index_fill(0, index, True)
    return where.flatten(1).any(1) if where.dim() > 1 else where


def refuse_missing(draft: Draft) -> Iterator[Violation]:
    """Every None on a trained token; one where the mask is off is as harmless as any other value there."""
    if not draft.missing or draft.settings.missing != "refuse":
        return
    mask: Tensor | None = draft.values.get("loss_mask")
    trained = [True] * draft.layout.num_tokens
    if mask is not None and mask.shape == (draft.layout.num_tokens,):
        trained = mask.tolist()
    ids, positions = draft.layout.sample_ids().tolist(), draft.layout.positions().tolist()
    for name, missing in draft.missing.items():
        found = [index for index in missing if trained[index]]
        lengths = draft.layout.response_lengths
        for row in sorted({ids[index] for index in found}):
            inside = [positions[index] for index in missing if ids[index] == row]
            if len(inside) == lengths[row]:
                yield Violation(name, "missing", "log-probs for all rows or none", "no value in this row", _HINT, row)
            else:
                at = next(positions[index] for index in found if ids[index] == row)
                found_text = "None" if len(inside) == 1 else f"None ({len(inside)} in this row)"
                yield Violation(name, "value", "a log-prob on every trained token", found_text, _HINT, row, at)


_HINT = (
    "find out why the engine gave no value (a NaN becomes null in JSON), or build under "
    'settings(missing="mask_out") or settings(missing="neutral")'
)


def _mask_out(draft: Draft, spec: FieldSpec, where: Tensor) -> Iterator[Violation]:
    mask = draft.tensor("loss_mask")
    where_here = where.to(mask.device)
    _count(draft, f"{spec.name}: missing, masked out", where_here & mask)
    draft.values[spec.name] = _fill(draft.tensor(spec.name), where, 0.0)
    # Looking costs a synchronisation, which a batch without weights is spared.
    if "loss_weights" not in draft.values or bool((where_here & mask).any()):
        wrong = list(narrowing_violations(draft.values, draft.is_part))
        draft.values |= {} if wrong else narrowed(draft.values, draft.layout, ~where_here)
        yield from wrong


def _neutralise(draft: Draft, spec: FieldSpec, where: Tensor) -> Iterator[Violation]:
    if spec.name == "old_log_probs" or "old_log_probs" not in draft.values:
        if draft.missing.get(spec.name):
            hint = 'use settings(missing="mask_out") for it'
            yield Violation(spec.name, "missing", "old_log_probs to fill it from", "nothing neutral", hint)
        return
    tensor = draft.tensor(spec.name)
    old = draft.tensor("old_log_probs").to(device=tensor.device, dtype=tensor.dtype)
    mask = draft.tensor("loss_mask").to(tensor.device)
    _count(draft, f"{spec.name}: missing, set to old_log_probs", where & mask)
    draft.values[spec.name] = _fill(tensor, where, old)


def _fill(tensor: Tensor, where: Tensor, value: Tensor | float) -> Tensor:
    shape = (-1,) + (1,) * (tensor.dim() - 1)
    filler = value.reshape(shape) if isinstance(value, Tensor) else torch.full_like(tensor, value)
    return torch.where(where.reshape(shape), filler, tensor)


def _count(draft: Draft, name: str, where: Tensor) -> None:
    """Kept on the device until somebody reads it, so that counting costs no synchronisation."""
    draft.repairs[name] = draft.repairs.get(name, 0) + where.sum()
