"""Log-probs and what is computed from them stay in float32 or float64."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.subjects import SchemaSubject
from rollout_contract.schema.plan import HALF_PRECISION

EXPLAINS = ("dtype", "split", "permutation", "masked")


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs or probe.first.watch.half is None or not probe.subject.is_in_contract:
        return
    place, dtype = probe.first.watch.half
    found = f"a conversion to {str(dtype).removeprefix('torch.')}"
    yield Finding(probe.at(place), "float32 or float64", found, f"{_WHY}; differences and exp belong in float32")


def find_in_schema(subject: SchemaSubject) -> Iterator[Finding]:
    """Log-prob fields that are declared in half precision."""
    for name, spec in subject.schema.__plan__.items():
        half = [dtype for dtype in spec.dtypes if dtype in HALF_PRECISION]
        place = subject.source.declaring(name)
        if place is not None and spec.holds_log_probs and half:
            hint = f"{_WHY}; tag the field Upcast to accept what is already lost"
            yield Finding(place, f"{name}: float32 or float64", " or ".join(half), hint)


_WHY = "a log-prob of -12.3 is off by 3 % in bfloat16"
