"""Results lie on the batch's device, whichever that is; shown with fake CUDA tensors."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.fake import on_fake_cuda
from rollout_contract.check.probe import Finding, Probe


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs:
        return
    finding = on_fake_cuda(probe)
    if finding is not None:
        yield finding
