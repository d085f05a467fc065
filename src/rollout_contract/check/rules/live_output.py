"""A result that is annotated as fixed carries no graph, even if the input secretly does."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import shape
from rollout_contract.check.sizes import FIRST
from rollout_contract.check.trace import reached
from rollout_contract.roles import Role


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs:
        return
    outcome = probe.run(probe.setup(FIRST, secret=True))
    tensors = {name: given.tensor for name, given in outcome.inputs.tensors.items()}
    for name, spec, tensor in shape.annotated_results(probe.subject.returns, outcome.result, "the result"):
        if spec.role is Role.FIXED and tensor.requires_grad:
            sources = sorted(reached(tensor, tensors))
            found = f"a graph that leads to {', '.join(sources) or 'something else than its input'}"
            hint = "compute it under torch.no_grad(), or detach it before it is returned"
            yield Finding(probe.subject.place, f"{name} without a graph: it is annotated as fixed", found, hint)
