"""Sizes follow the input; none is written down."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import shape

EXPLAINS = ("split", "permutation", "shape", "edge-shape")


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "hard-coded-size":
        yield found.finding
    if probe.runs:
        yield from _constant_results(probe)
        yield from _untrained_tail(probe)


def _constant_results(probe: Probe) -> Iterator[Finding]:
    """A result whose shape is wrong, and the same for both inputs."""
    found = [list(shape.wrong(outcome, probe.subject.returns)) for outcome in (probe.first, probe.second)]
    for (name, dims, first), (_, _, second) in zip(*found, strict=False):
        constant = sorted(set(first) & set(second) - {1})
        if first == second and constant:
            expected = f"{name} of shape [{' '.join(dims)}]"
            yield Finding(probe.subject.place, expected, f"{list(first)}, whatever the input")


def _untrained_tail(probe: Probe) -> Iterator[Finding]:
    """No gradient from some token on, the same one for both inputs: ``log_probs[:16]``."""
    if not probe.is_loss:
        return
    for name in probe.trainable(probe.first):
        first, second = _last_with_gradient(probe.first, name), _last_with_gradient(probe.second, name)
        if first is not None and first == second:
            found = f"no gradient beyond entry {first}, for {probe.first.inputs.dims.label(23)} and for 29"
            yield Finding(probe.at_input(name), f"a gradient on all trained entries of {name}", found)


def _last_with_gradient(outcome: Outcome, name: str) -> int | None:
    """The last entry that has a gradient, if at least three trained ones after it have none."""
    gradient, mask = outcome.gradients.get(name), outcome.inputs.mask
    if gradient is None or gradient.dim() != 1 or mask is None or mask.shape != gradient.shape:
        return None
    nonzero = gradient.nonzero().flatten()
    if not len(nonzero):
        return None
    last = int(nonzero[-1])
    return last if int(mask[last + 1 :].sum()) >= 3 else None
