"""The loss is differentiated through every trainable input."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import shape
from rollout_contract.roles import Role


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "unreached":
        yield found.finding
    if not probe.runs:
        return
    if probe.is_loss and probe.first.loss is not None:
        for name in probe.trainable(probe.first):
            yield from _of_input(probe, name)
    for name, spec, tensor in shape.annotated_results(probe.subject.returns, probe.first.result, "the result"):
        if spec.role is Role.TRAINABLE and not tensor.requires_grad:
            yield Finding(probe.subject.place, f"{name} with a graph: it is annotated as trainable", "no graph")


def _of_input(probe: Probe, name: str) -> Iterator[Finding]:
    expected = f"a gradient into {name}, which is trainable"
    reading = probe.reading(name)
    if probe.first.gradients.get(name) is None:
        if reading is None:
            hint = "annotate the function with the schema that it reads, without this field"
            yield Finding(probe.subject.place, expected, "it is never read", hint)
        else:
            hint = "remove the detach, the no_grad or the conversion that cut it off"
            yield Finding(reading, expected, "the loss has no graph that leads to it", hint)
    elif _is_zero(probe.first, name) and _is_zero(probe.second, name):
        hint = "the same live tensor stands on both sides of a difference, or everything is clipped"
        yield Finding(probe.at(reading), expected, "a gradient of exactly zero everywhere", hint)


def _is_zero(outcome: Outcome, name: str) -> bool:
    gradient = outcome.gradients.get(name)
    return gradient is not None and not bool(gradient.any())
