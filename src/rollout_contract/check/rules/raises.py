"""A function returns on every batch that its annotations allow."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure
from rollout_contract.check.probe import Finding, Probe


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "raises":
        yield found.finding
