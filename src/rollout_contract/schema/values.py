"""Checks that look at values: one reduction per field, one synchronisation for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rollout_contract.errors import Violation
from rollout_contract.kernels.masking import zero_outside
from rollout_contract.layout import Layout
from rollout_contract.schema.plan import FieldSpec

LOG_PROB_TOLERANCE = 1e-3
"""How far above zero a log-prob may lie (nats): a log-softmax in float32 overshoots by rounding."""


def value_violations(specs: Sequence[FieldSpec], values: Mapping[str, Any], layout: Layout) -> Iterator[Violation]:
    """Trained tokens with NaN, an infinity, or a log-prob above zero. What lies at masked tokens is of no interest."""
    checked = [spec for spec in specs if spec.family == "float" and can_look(values[spec.name])]
    if not checked:
        return
    home = values["loss_mask"].device
    found = torch.stack([_has_wrong(spec, values).to(home) for spec in checked]).tolist()
    for spec, has_wrong in zip(checked, found, strict=True):
        if has_wrong:
            yield _first_wrong(spec, values[spec.name], _wrong_entries(spec, values), layout)


def can_look(tensor: Tensor) -> bool:
    """Meta and fake tensors have a shape and no values."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def _has_wrong(spec: FieldSpec, values: Mapping[str, Any]) -> Tensor:
    """Whether anything is wrong, from the extremes alone (NaN is both): far cheaper than a look at every entry."""
    tensor: Tensor = values[spec.name].detach()
    if spec.allow_nan or not tensor.numel():
        return _is_wrong(spec, tensor).any()
    if spec.axis == "tokens":
        mask = values["loss_mask"].to(tensor.device)
        tensor = zero_outside(tensor, mask.reshape(-1, *(1,) * (tensor.dim() - 1)))
    low, high = tensor.aminmax()
    largest = torch.finfo(tensor.dtype).max
    return ~((low >= -largest) & (high <= (LOG_PROB_TOLERANCE if spec.holds_log_probs else largest)))


def _wrong_entries(spec: FieldSpec, values: Mapping[str, Any]) -> Tensor:
    wrong = _is_wrong(spec, values[spec.name].detach())
    wrong = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
    return wrong & values["loss_mask"].to(wrong.device) if spec.axis == "tokens" else wrong


def _is_wrong(spec: FieldSpec, entries: Tensor) -> Tensor:
    wrong = torch.isinf(entries) if spec.allow_nan else ~torch.isfinite(entries)
    return wrong | (entries > LOG_PROB_TOLERANCE) if spec.holds_log_probs else wrong


def _first_wrong(spec: FieldSpec, tensor: Tensor, wrong: Tensor, layout: Layout) -> Violation:
    index = int(wrong.nonzero()[0])
    row, position = index, None
    if spec.axis == "tokens":
        row, position = int(layout.sample_ids()[index]), int(layout.positions()[index])
    entry = tensor[index].detach().flatten()
    bad = entry[_is_wrong(spec, entry)]
    count = int(wrong.sum())
    more = "" if count == 1 else f" (and {count - 1} more such entries)"
    expected = "a finite log-prob, at most 0" if spec.holds_log_probs else "a finite number"
    return Violation(spec.name, "value", expected, f"{bad[0].item()}{more}", _hint(spec, bad[0]), row, position)


def _hint(spec: FieldSpec, value: Tensor) -> str:
    if not spec.holds_log_probs:
        return "mask the token out, or repair the producer" if spec.axis == "tokens" else "repair the producer"
    if bool(torch.isnan(value)):
        return 'repair the producer, or build under settings(missing="mask_out")'
    if bool(torch.isinf(value)):
        return "the token lies outside the support that was scored (top-k or top-p filtering): mask it out"
    return "a probability above 1: were logits or negated log-probs passed?"
