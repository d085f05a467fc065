"""What a rejection does to the denominators of the loss (golden numbers by hand)."""

from __future__ import annotations

import pytest
import torch

from rollout_contract import policy_loss
from rollout_contract.corrections import Correction
from rollout_contract.errors import CorrectionError, DeviceError
from rollout_contract.objectives import Reinforce
from rollout_contract.schemas import PolicyBatch

LOG_PROBS = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])
KEEP = torch.tensor([True, False, True, True, False])


def step() -> PolicyBatch:
    return PolicyBatch(
        response_lengths=[3, 2], loss_mask=[[1, 1, 1], [1, 1]], old_log_probs=LOG_PROBS, advantages=torch.ones(5)
    )


def loss_of(batch: PolicyBatch) -> float:
    live = LOG_PROBS[: batch.layout.num_tokens].clone().requires_grad_()
    return policy_loss(batch.bind(log_probs=live), Reinforce()).value.item()


def test_rejected_tokens_leave_the_denominators_in_either_order() -> None:
    batch = step()
    first = batch.corrected(Correction(batch, mask=KEEP)).weighted("token-mean")
    last = batch.weighted("token-mean")
    last = last.corrected(Correction(last, mask=KEEP))
    assert loss_of(first) == loss_of(last) == pytest.approx((1 + 3 + 4) / 3)


def test_they_stay_in_the_denominators_on_request() -> None:
    batch = step().weighted("token-mean")
    assert loss_of(batch.corrected(Correction(batch, mask=KEEP), keep_denominators=True)) == pytest.approx(8 / 5)


def test_a_part_may_keep_its_denominators_but_not_make_new_ones() -> None:
    part = step().weighted("token-mean").split(samples=1)[0]
    correction = Correction(part, mask=KEEP[:3])
    assert loss_of(part.corrected(correction, keep_denominators=True)) == pytest.approx(4 / 5)
    with pytest.raises(CorrectionError, match="before weighted"):
        part.corrected(correction)


def test_there_must_be_weights_to_keep() -> None:
    batch = step()
    with pytest.raises(CorrectionError, match="call weighted"):
        batch.corrected(Correction(batch, mask=KEEP), keep_denominators=True)


def test_a_correction_made_on_another_device_is_refused() -> None:
    batch = step()
    elsewhere = batch.to("meta")
    with pytest.raises(DeviceError, match="meta"):
        batch.corrected(Correction(elsewhere, weights=torch.ones(5, device="meta")))


def test_a_rule_is_called_with_the_batch() -> None:
    batch = step()
    assert batch.corrected(lambda b: Correction(b, mask=KEEP)).loss_mask.tolist() == KEEP.tolist()
