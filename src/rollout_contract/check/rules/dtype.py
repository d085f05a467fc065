"""A loss has the dtype of its log-probs whatever that of the fixed input; results have that of their annotation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from rollout_contract.check.failure import failure, show_error
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import shape
from rollout_contract.check.setup import Floats
from rollout_contract.check.sizes import FIRST

EXPLAINS = ("half-precision",)

_INPUT: dict[Floats, str] = {
    "float32": "float32 input",
    "float64": "float64 input",
    "mixed": "float32 trainable input and float64 fixed input",
}


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "dtype":
        yield found.finding
    if not probe.runs:
        return
    yield from _wrong_results(probe)
    for floats, name in _INPUT.items():
        fault = _wrong_loss(probe, probe.run(probe.setup(FIRST, floats=floats)), name)
        if fault is not None:
            yield fault
            return


def _wrong_results(probe: Probe) -> Iterator[Finding]:
    """Results whose dtype their annotation does not allow."""
    outcome = probe.first
    for name, spec, tensor in shape.annotated_results(probe.subject.returns, outcome.result, "the result"):
        if spec.dtypes and _name(tensor) not in spec.dtypes:
            allowed = spec.dtypes[0] if len(spec.dtypes) == 1 else spec.family
            yield Finding(probe.subject.place, f"{name} of dtype {allowed}", _name(tensor))


def _wrong_loss(probe: Probe, outcome: Outcome, name: str) -> Finding | None:
    """What only some precisions make fail, or a loss of another precision than the log-probs."""
    if outcome.error is not None:
        if not probe.subject.is_in_contract:
            return None
        place = probe.at(line_of_error(outcome.error, probe.subject.home))
        return Finding(place, f"a result for {name}", show_error(outcome.error), _HINT)
    live = {_name(outcome.inputs.tensors[trainable].tensor) for trainable in probe.trainable(outcome)}
    if not probe.is_loss or outcome.loss is None or len(live) != 1 or _name(outcome.loss) in live:
        return None
    return Finding(probe.subject.place, f"a {live.pop()} loss for {name}", _name(outcome.loss), _HINT)


_HINT = "read fixed fields with read(batch, name, like=log_probs), which brings them to the dtype of the log-probs"


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
