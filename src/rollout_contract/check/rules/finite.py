"""Ordinary input gives finite results and finite gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.sizes import FIRST

EXPLAINS = ("edge-shape", "split", "permutation", "masked", "unreached", "hard-coded-size")


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs or not probe.subject.is_in_contract:
        return
    on_policy = probe.run(probe.setup(FIRST, on_policy=True), watched=True)
    for outcome, kind in ((probe.first, _ORDINARY), (probe.second, _ORDINARY), (on_policy, _ON_POLICY)):
        bad = not_finite(outcome)
        if bad is not None:
            name, number = bad
            yield Finding(probe.at(outcome.watch.not_finite), f"{name} finite {kind}", number)
            return


_ORDINARY = "on ordinary input"
_ON_POLICY = "where all log-probs are equal, as in the first update of a step"


def not_finite(outcome: Outcome) -> tuple[str, str] | None:
    """The first result that holds a NaN or an infinity; metrics may: the largest of nothing is -inf."""
    for name, tensor in outcome.everything().items():
        wrong = ~torch.isfinite(tensor)
        if not name.startswith("the metric") and bool(wrong.any()):
            return name, str(tensor[wrong].flatten()[0].item())
    return None
