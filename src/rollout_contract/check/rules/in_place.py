"""Input is not edited in place."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure
from rollout_contract.check.probe import Finding, Probe

EXPLAINS = ("split", "permutation", "masked", "live-input", "unreached", "raises")

_HINT = "compute a new tensor; the caller still holds this one, and later epochs read it again"


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "in-place":
        yield found.finding
    outcome = probe.first
    for name, place in outcome.watch.edits.items():
        yield Finding(probe.at(place), f"{name} as it was given", "an edit in place", _HINT)
    for name in outcome.edited:
        if name not in outcome.watch.edits:
            yield Finding(probe.at_input(name), f"{name} as it was given", "other values after the call", _HINT)
