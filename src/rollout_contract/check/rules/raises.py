"""A function returns on every batch that its annotations allow, and its loss runs backward."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure, show_error
from rollout_contract.check.probe import Finding, Probe

EXPLAINS = ("unreached", "masked", "split", "permutation", "live-input")


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "raises":
        yield found.finding
    if probe.runs and probe.first.backward_error is not None:
        yield Finding(probe.subject.place, "a loss that runs backward", show_error(probe.first.backward_error))
