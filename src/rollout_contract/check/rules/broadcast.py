"""Operands have the same dimensions; nothing is broadcast that was not expanded on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure, show_error
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import split
from rollout_contract.check.sizes import EMPTY_RESPONSE, FIRST, SQUARE, SQUARE_PARTS

EXPLAINS = ("split", "permutation", "masked", "edge-shape", "shape", "hard-coded-size")


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "broadcast":
        yield found.finding
    if probe.runs:
        yield from _outer_products(probe)
        yield from _square(probe)


def _outer_products(probe: Probe) -> Iterator[Finding]:
    """[n, 1] with [n] makes [n, n]."""
    dims = probe.first.inputs.dims
    for event in probe.first.watch.broadcasts[:1]:
        left, right = event.shapes
        found = f"{dims.show(left)} with {dims.show(right)}, which makes {dims.show(event.result)}"
        hint = "drop the dimension of 1 with .squeeze(-1); where an outer product is meant, write [None, :]"
        yield Finding(probe.at(event.place), "operands of the same dimensions", found, hint)


def _square(probe: Probe) -> Iterator[Finding]:
    """With as many samples as tokens, a loss that tells them apart by their size takes one for the other."""
    ordinary = probe.setup(FIRST, floats="float64")
    if not split.applies(probe) or split.differences(probe, ordinary, split.cuts(probe, 1)):
        return
    if probe.run(probe.setup(EMPTY_RESPONSE)).error is not None:
        # Its fault is another one: the square input has responses without tokens too.
        return
    found = split.differences(probe, probe.setup(SQUARE, floats="float64"), SQUARE_PARTS)
    for name, whole, parts in found[:1]:
        hint = "tell per-token from per-sample values by their name, not by their length"
        expected = f"the same {name} when there are as many samples as tokens ({SQUARE.name})"
        text = show_error(parts) if isinstance(parts, BaseException) else f"{whole} as a whole, {parts} from its parts"
        yield Finding(probe.subject.place, expected, text, hint)
