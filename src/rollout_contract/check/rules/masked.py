"""What lies at masked tokens changes neither loss nor gradient nor any metric."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rollout_contract.check.failure import show_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.sizes import FIRST

GARBAGE = (7.25, math.nan, math.inf, -math.inf, 1e30)


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs or not probe.subject.is_in_contract or probe.first.inputs.mask is None:
        return
    if all(_difference(probe, garbage, frozenset()) is None for garbage in GARBAGE):
        return
    for name in probe.first.inputs.tensors:
        finding = _of_input(probe, name)
        if finding is not None:
            yield finding


def _of_input(probe: Probe, name: str) -> Finding | None:
    for garbage in GARBAGE:
        found = _difference(probe, garbage, frozenset({name}))
        if found is not None:
            what = "other values" if probe.first.inputs.tensors[name].tensor.dtype == torch.bool else f"{garbage:g}"
            hint = "replace masked entries before any arithmetic: read(batch, name), or torch.where(mask, x, 0)"
            expected = f"the same result whatever lies at masked entries of {name}"
            return Finding(probe.at_input(name), expected, f"with {what} there, {found}", hint)
    return None


def _difference(probe: Probe, garbage: float, names: frozenset[str]) -> str | None:
    outcome = probe.run(probe.setup(FIRST, garbage=garbage, garbled=names))
    if outcome.error is not None:
        return show_error(outcome.error)
    return next(differences(probe.first, outcome), None)


def differences(before: Outcome, after: Outcome) -> Iterator[str]:
    """What a caller sees differently, as text."""
    mine, other = before.everything(), after.everything()
    for name in mine:
        if name not in other:
            yield f"{name} is gone"
        elif not _same(mine[name], other[name]):
            yield f"{name} goes {_show(mine[name], other[name])}"


def _same(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    return torch.allclose(left.double(), right.double(), rtol=1e-6, atol=1e-9, equal_nan=True)


def _show(left: Tensor, right: Tensor) -> str:
    """The first entry that differs."""
    if left.shape != right.shape:
        return f"from shape {list(left.shape)} to {list(right.shape)}"
    a, b = left.double().flatten(), right.double().flatten()
    index = int((~torch.isclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)).nonzero()[0])
    return f"from {a[index].item():.4g} to {b[index].item():.4g}"
