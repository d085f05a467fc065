"""The loss does not differentiate through fixed input, even if it secretly carries a graph."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.failure import failure
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.sizes import FIRST
from rollout_contract.roles import Role


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "live-input":
        yield found.finding
    if not probe.runs or not probe.is_loss:
        return
    outcome = probe.run(probe.setup(FIRST, secret=True))
    if outcome.error is not None:
        # It looks at its input and refuses it, which is as good.
        return
    for name, gradient in outcome.gradients.items():
        given = outcome.inputs.tensors[name]
        if given.role is Role.FIXED and gradient is not None:
            expected = f"no gradient into {name}, which is fixed"
            found_text = f"the loss is differentiated through it (largest gradient {gradient.abs().max():.3g})"
            yield Finding(probe.at_input(name), expected, found_text, _hint(probe, name))


def _hint(probe: Probe, name: str) -> str:
    if any(parameter.schema is not None for parameter in probe.subject.parameters):
        return f'read(batch, "{name}") cuts the graph and masks; or .detach() it'
    return f"{name} = {name}.detach() before it is used"
