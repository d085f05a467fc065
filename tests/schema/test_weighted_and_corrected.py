"""Weights and corrections of a step, and the metadata of its scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rollout_contract import PolicyBatch, RolloutBatch, policy_loss
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import Correction, Reject, Truncate
from rollout_contract.errors import (
    ContractError,
    CorrectionError,
    FrozenError,
    MetadataError,
    RowsError,
)
from rollout_contract.objectives import PPOClip
from rollout_contract.sampling import Sampling
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, FullBatch, live, policy_batch

ROLLOUT = [-1.5, -2.0, -0.5, -3.0, -1.0]


def full_batch(**changes: Any) -> FullBatch:
    plain = {
        "response_lengths": LENGTHS,
        "loss_mask": MASK,
        "old_log_probs": torch.tensor(OLD),
        "rollout_log_probs": torch.tensor(ROLLOUT),
        "advantages": torch.tensor(ADVANTAGES),
    }
    return FullBatch(**(plain | changes))


# -- weighted -------------------------------------------------------------------------------------------------------


def test_weights_are_fixed_and_their_rule_is_kept() -> None:
    step = policy_batch().weighted("token-mean")
    assert step.loss_weights.tolist() == [0.25, 0.25, 0.25, 0.0, 0.25]
    assert step.aggregation == Aggregation(mode="token-mean")
    assert not step.loss_weights.requires_grad


def test_weights_can_be_made_anew_before_a_split() -> None:
    step = policy_batch().weighted("token-mean").weighted("sum", scale=2.0)
    assert step.loss_weights.tolist() == [2.0, 2.0, 2.0, 0.0, 2.0]
    assert str(step.aggregation) == "sum, scaled by 2"
    assert policy_batch().weighted(Aggregation(mode="sum", scale=3.0), scale=2.0).aggregation.scale == 6.0


def test_a_part_has_no_counts_of_its_own() -> None:
    part = policy_batch().split(samples=1)[0]
    assert part.is_part
    with pytest.raises(RowsError) as caught:
        part.weighted("token-mean")
    assert (caught.value.found, caught.value.hint) == (
        "a part of one, with too small counts",
        "call weighted() on the step, then split it; or give the step's denominator",
    )
    assert not policy_batch().split(samples=5)[0].is_part


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize("wrong", ["mean", "token_mean", "constant", ""])
def test_an_unknown_mode(wrong: Any) -> None:
    with pytest.raises(ValueError, match="1 validation error for Aggregation"):
        policy_batch().weighted(wrong)


def test_weights_of_ones_own_are_taken_as_they_are() -> None:
    step = policy_batch(loss_weights=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert step.split(samples=1)[1].loss_weights.tolist() == [3.0, 4.0, 5.0]
    assert not step.has("aggregation")


def test_a_part_may_be_weighted_by_the_count_of_its_step() -> None:
    parts = policy_batch().split(samples=1)
    weights = [part.weighted("token-mean", denominator=4).loss_weights for part in parts]
    assert torch.cat(weights).tolist() == policy_batch().weighted("token-mean").loss_weights.tolist()
    with pytest.raises(ContractError):
        parts[0].weighted("token-mean", denominator=0)
    joined = PolicyBatch.concat([part.weighted("token-mean", denominator=4) for part in parts])
    assert float(joined.loss_weights.sum()) == 1.0


# -- corrected ------------------------------------------------------------------------------------------------------


def rejecting(step: RolloutBatch, keep: list[bool]) -> Correction:
    return Correction(step, mask=torch.tensor(keep) & step.loss_mask)


KEEP = [True, False, True, True, True]


def test_rejected_tokens_leave_the_denominators_before_and_after_weighted() -> None:
    step = full_batch()
    correction = rejecting(step, KEEP)
    before = step.corrected(correction).weighted("token-mean")
    after = step.weighted("token-mean").corrected(correction)
    for made in (before, after):
        assert made.loss_mask.tolist() == [True, False, True, False, True]
        assert made.loss_weights.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "sum"])
def test_weights_made_anew_are_those_of_the_narrower_mask(mode: Any) -> None:
    keep = [False, False, True, True, True]
    step = full_batch()
    found = step.weighted(mode, scale=3.0).corrected(rejecting(step, keep)).loss_weights
    expected = full_batch(loss_mask=[0, 0, 1, 0, 1]).weighted(mode, scale=3.0).loss_weights
    assert torch.equal(found, expected)


def test_weights_of_a_part_or_of_all_ranks_cannot_be_made_anew() -> None:
    step = full_batch().weighted("token-mean")
    part = step.split(samples=1)[0]
    with pytest.raises(CorrectionError) as caught:
        part.corrected(rejecting(part, [True, False]))
    assert caught.value.field == "loss_weights"
    assert "before weighted() and split()" in caught.value.hint
    own = full_batch(loss_weights=torch.ones(5))
    with pytest.raises(CorrectionError):
        own.corrected(rejecting(own, KEEP))


def test_importance_weights_alone_change_no_denominator_and_may_come_late() -> None:
    part = full_batch().weighted("token-mean").split(samples=1)[0]
    corrected = part.corrected(Truncate()(part))
    assert corrected.loss_weights.tolist() == part.loss_weights.tolist()
    assert corrected.correction_weights.tolist() == pytest.approx([1.6487212, 1.0])


def test_a_correction_is_for_its_rows() -> None:
    step = full_batch()
    correction = Truncate()(step)
    for other in (step.select([1, 0]), step.select([0]), full_batch()):
        with pytest.raises(RowsError) as caught:
            other.corrected(correction)
        assert caught.value.field == "correction"


def test_one_set_of_importance_weights() -> None:
    step = full_batch()
    once = step.corrected(Truncate()(step))
    with pytest.raises(CorrectionError, match="a second set"):
        once.corrected(Truncate()(once))
    assert once.corrected(Reject(high=1.2)(once)).loss_mask.tolist() == [False, True, True, False, True]


def test_a_correction_that_nobody_used() -> None:
    step = full_batch()
    step = step.corrected(Truncate()(step)).weighted("token-mean").bind(log_probs=live())
    assert policy_loss(step, PPOClip()).used_correction


# -- sampling metadata ----------------------------------------------------------------------------------------------


COLD, WARM = Sampling(temperature=0.6), Sampling()


def test_scores_made_alike_go_together() -> None:
    step = full_batch(sampling={"old_log_probs": COLD, "rollout_log_probs": {"temperature": 0.6}})
    assert step.sampling["rollout_log_probs"] == COLD
    assert full_batch(sampling={"old_log_probs": COLD}).sampling == {"old_log_probs": COLD}
    assert not full_batch().has("sampling")


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"temperature": 1.0}, "processed at temperature 1.0"),
        ({"temperature": 0.6, "log_probs": "raw"}, "raw at temperature 0.6"),
        ({"temperature": 0.6, "top_p": 0.9}, "processed at temperature 0.6, top_p 0.9"),
        ({"temperature": 0.6, "top_k": 50}, "processed at temperature 0.6, top_k 50"),
    ],
)
def test_scores_made_differently_do_not_belong_into_one_ratio(other: dict[str, Any], found: str) -> None:
    with pytest.raises(MetadataError) as caught:
        full_batch(sampling={"old_log_probs": COLD, "rollout_log_probs": other})
    assert caught.value.field == "rollout_log_probs"
    assert caught.value.expected == "processed at temperature 0.6, as old_log_probs"
    assert caught.value.found == found


@pytest.mark.parametrize(
    "sampling",
    [
        {"advantages": WARM},
        {"nonsense": WARM},
        {"old_log_probs": {"temperature": 0.0}},
        {"old_log_probs": {"temperature": -1.0}},
        {"old_log_probs": {"top_p": 1.5}},
        {"old_log_probs": {"heat": 1.0}},
        {"old_log_probs": {"log_probs": "cooked"}},
        3,
    ],
    ids=str,
)
def test_sampling_that_means_nothing(sampling: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        full_batch(sampling=sampling)
    assert caught.value.field == "sampling"


def test_sampling_comes_with_each_field() -> None:
    step = policy_batch(sampling={"old_log_probs": COLD})
    wider = step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"rollout_log_probs": COLD})
    bound = wider.bind(log_probs=live(), sampling={"log_probs": COLD})
    assert set(bound.sampling) == {"old_log_probs", "rollout_log_probs", "log_probs"}
    with pytest.raises(MetadataError):
        wider.bind(log_probs=live(), sampling={"log_probs": WARM})
    with pytest.raises(MetadataError):
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"rollout_log_probs": WARM})
    with pytest.raises(FrozenError) as caught:
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"old_log_probs": WARM})
    assert caught.value.field == "sampling of old_log_probs"
    with pytest.raises(MetadataError):
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling=3)


def test_sampling_travels() -> None:
    step = full_batch(sampling={"old_log_probs": COLD})
    for other in (*step.split(samples=1), step.select([1]), step.to("cpu"), step.pad_to(3), step.weighted("sum")):
        assert other.sampling == {"old_log_probs": COLD}
