"""Corrections of a batch on an accelerator, with tensors that have a device and no values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rollout_contract.corrections import M2PO, Correction, CorrectionRule, IcePop, Normalize, Reject, Truncate
from rollout_contract.errors import DeviceError
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.schemas import TISBatch

RULES = [
    Truncate(),
    Truncate(level="sequence", only=Reject(level="sequence-max", high=2.0)),
    IcePop(),
    Reject(statistic="k3", high=1.0),
    Reject(level="sequence-every", low=0.1),
    M2PO(),
    Normalize(rule=Truncate(), per="sequence"),
    Truncate(high=None) & Reject(level="sequence-mean", high=2.0),
]


@pytest.fixture(params=["cuda", "cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield torch.device(request.param)


def fake(device: torch.device) -> TISBatch:
    return TISBatch(
        response_lengths=[3, 2],
        loss_mask=torch.ones(5, dtype=torch.bool, device=device),
        old_log_probs=torch.zeros(5, device=device),
        rollout_log_probs=torch.zeros(5, device=device),
    )


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_correction_stays_on_the_device_and_reads_nothing_from_it(rule: CorrectionRule, device: torch.device) -> None:
    batch = fake(device)
    correction = rule(batch)
    for tensor in (correction.weights, correction.mask):
        assert tensor is None or tensor.device.type == device.type
    assert batch.corrected(correction).device.type == device.type


def test_metrics_stay_on_the_device(device: torch.device) -> None:
    assert {metric.parts.device.type for metric in mismatch_metrics(fake(device)).values()} == {device.type}


def test_weights_on_another_device_are_refused() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DeviceError, match="weights"):
        Correction(fake(torch.device("cuda")), weights=torch.ones(5))
