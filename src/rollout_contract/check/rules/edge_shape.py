"""Batches without samples, with one token, or with nothing to train give a finite result with a graph."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import show_error
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import shape
from rollout_contract.check.rules.finite import not_finite
from rollout_contract.check.setup import Setup
from rollout_contract.check.sizes import EDGES


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs or not (probe.subject.is_in_contract or probe.first.inputs.dims.are_of_a_layout):
        return
    seen: set[int] = set()
    for sizes in EDGES:
        finding = _at_edge(probe, probe.setup(sizes))
        if finding is not None and finding.place.line not in seen:
            seen.add(finding.place.line)
            yield finding


def _at_edge(probe: Probe, setup: Setup) -> Finding | None:
    outcome, name = probe.run(setup, watched=True), setup.sizes.name
    if outcome.error is not None:
        place = probe.at(line_of_error(outcome.error, probe.subject.home))
        return Finding(place, f"a result for {name}", show_error(outcome.error))
    bad = not_finite(outcome) if probe.subject.is_in_contract else None
    if bad is not None:
        hint = "divide by max(count, 1); a group or a mask may be empty, and one number has no variance"
        return Finding(probe.at(outcome.watch.not_finite), f"{bad[0]} finite for {name}", bad[1], hint)
    for result, dims, actual in shape.wrong(outcome, probe.subject.returns):
        hint = "squeeze() without a dimension also drops the one that counts"
        return Finding(probe.subject.place, f"{result} of shape [{' '.join(dims)}] for {name}", str(list(actual)), hint)
    return _without_graph(probe, outcome, name)


def _without_graph(probe: Probe, outcome: Outcome, name: str) -> Finding | None:
    """Every rank has to run backward, also one that has nothing to train."""
    loss = outcome.loss
    if not probe.subject.declared or loss is None or loss.requires_grad or not probe.trainable(outcome):
        return None
    if not (probe.first.loss is not None and probe.first.loss.requires_grad):
        return None
    hint = "multiply by the weights, which are zero, instead of returning a constant"
    return Finding(probe.subject.place, f"a loss with a graph for {name}", "a constant", hint)
