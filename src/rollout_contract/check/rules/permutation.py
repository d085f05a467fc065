"""The order of the samples changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rollout_contract.check.failure import show_error
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules.masked import differences
from rollout_contract.check.sizes import FIRST
from rollout_contract.corrections.correction import Correction

_STRIDE = 2


def find(probe: Probe) -> Iterator[Finding]:
    result = probe.first.result
    is_loss = probe.subject.declared and probe.runs and probe.first.loss is not None
    if not (is_loss or isinstance(result, Correction)) or not probe.first.inputs.num_rows or probe.is_random:
        return
    setup = probe.setup(FIRST, floats="float64")
    whole = probe.run(setup)
    if whole.error is not None:
        return
    rows = _order(whole.inputs.num_rows or 0)
    (permuted,), _ = probe.run_rows(setup, [rows])
    if permuted.error is not None:
        yield Finding(probe.subject.place, "a result for every order of the samples", show_error(permuted.error))
        return
    if isinstance(result, Correction):
        yield from _of_correction(probe, rows)
        return
    for found in differences(whole, permuted):
        yield Finding(probe.subject.place, "the same result for every order of the samples", found)
        return


def _order(count: int) -> list[int]:
    """Odd rows first, then even ones."""
    return [*range(1, count, _STRIDE), *range(0, count, _STRIDE)]


def _of_correction(probe: Probe, rows: list[int]) -> Iterator[Finding]:
    """Weights and mask go with their tokens."""
    setup = probe.setup(FIRST, floats="float64")
    whole = probe.run(setup).result
    permuted = probe.run_rows(setup, [rows])[0][0].result
    layout = probe.first.inputs.arguments[probe.subject.parameters[0].name].layout
    ids = layout.sample_ids()
    index = torch.cat([(ids == row).nonzero().flatten() for row in rows])
    for name in ("weights", "mask"):
        mine, other = getattr(whole, name), getattr(permuted, name)
        if mine is not None and not torch.allclose(mine[index].double(), other.double(), rtol=1e-6):
            yield Finding(probe.subject.place, f"{name} that go with their tokens, in every order", f"other {name}")
