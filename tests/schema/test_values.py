"""What a number may be on a trained token. What lies at masked tokens is of no interest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, RolloutBatch, settings, unbound
from rollout_contract.errors import ContractError, NonFiniteError
from rollout_contract.schema.values import LOG_PROB_TOLERANCE
from rollout_contract.schemas import RewardBatch, RewardComponentsBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, NAN, OLD, live, policy_batch

INF = float("inf")


class Wide(RolloutBatch):
    """Fields that are no scores."""

    top: Fixed[Float[Tensor, "tokens topk"]] = unbound()
    score: Fixed[Float[Tensor, "batch"]] = unbound()
    baseline: Fixed[Float[Tensor, "groups"]] = unbound()
    ids: Fixed[Int[Tensor, "tokens"]] = unbound()


def replaced(values: list[float], index: int, value: float) -> Tensor:
    return torch.tensor([*values[:index], value, *values[index + 1 :]])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(("index", "place"), [(0, (0, 0)), (1, (0, 1)), (2, (1, 0)), (4, (1, 2))])
@pytest.mark.parametrize("name", ["old_log_probs", "advantages"])
def test_a_trained_token_is_finite(name: str, index: int, place: tuple[int, int], bad: float) -> None:
    plain = {"old_log_probs": OLD, "advantages": ADVANTAGES}[name]
    with pytest.raises(NonFiniteError) as caught:
        policy_batch(**{name: replaced(plain, index, bad)})
    assert (caught.value.field, caught.value.row, caught.value.position) == (name, *place)
    assert caught.value.found == str(bad)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30, 5.0])
@pytest.mark.parametrize("name", ["old_log_probs", "advantages"])
def test_a_masked_token_is_anything(name: str, bad: float) -> None:
    plain = {"old_log_probs": OLD, "advantages": ADVANTAGES}[name]
    given = replaced(plain, 3, bad)
    assert torch.allclose(getattr(policy_batch(**{name: given}), name), given, 0.0, 0.0, equal_nan=True)


def test_a_live_field_is_looked_at_too() -> None:
    with pytest.raises(NonFiniteError):
        policy_batch().bind(log_probs=live(replaced(OLD, 0, -INF)))
    policy_batch().bind(log_probs=live(replaced(OLD, 3, NAN)))


@pytest.mark.parametrize(
    ("value", "legal"), [(0.0, True), (LOG_PROB_TOLERANCE / 2, True), (0.01, False), (1.0, False), (-1e30, True)]
)
def test_a_log_prob_is_at_most_zero(value: float, legal: bool) -> None:
    given = replaced(OLD, 2, value)
    if legal:
        policy_batch(old_log_probs=given)
        return
    with pytest.raises(NonFiniteError) as caught:
        policy_batch(old_log_probs=given)
    assert caught.value.expected == "a finite log-prob, at most 0"
    assert caught.value.hint == "a probability above 1: were logits or negated log-probs passed?"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (NAN, 'repair the producer, or build under settings(missing="mask_out")'),
        (-INF, "the token lies outside the support that was scored (top-k or top-p filtering): mask it out"),
    ],
)
def test_the_repair_depends_on_the_value(value: float, hint: str) -> None:
    with pytest.raises(NonFiniteError) as caught:
        policy_batch(old_log_probs=replaced(OLD, 2, value))
    assert caught.value.hint == hint


def test_many_bad_values_are_one_violation_with_a_count() -> None:
    with pytest.raises(NonFiniteError) as caught:
        policy_batch(advantages=torch.full((5,), NAN))
    assert len(caught.value.violations) == 1
    assert caught.value.found == "nan (and 3 more such entries)"


def test_every_axis_is_looked_at() -> None:
    bad = torch.tensor([[1.0, 2.0]] * 4 + [[1.0, NAN]])
    given = {"response_lengths": LENGTHS, "group_ids": [3, 3]}
    with pytest.raises(ContractError) as caught:
        Wide(loss_mask=MASK, top=bad, score=[1.0, INF], baseline=[-INF], **given)
    assert [(v.field, v.row, v.position) for v in caught.value.violations] == [
        ("top", 1, 2),
        ("score", 1, None),
        ("baseline", 0, None),
    ]
    Wide(loss_mask=[[1, 1], [1, 1, 0]], top=bad, ids=[1, 2, 3, 4, 5], **given)


def test_a_reward_that_could_not_be_computed_may_be_nan_and_never_infinite() -> None:
    given: dict[str, Any] = {"response_lengths": LENGTHS, "loss_mask": MASK}
    assert RewardBatch(**given, rewards=[1.0, NAN]).rewards.isnan().tolist() == [False, True]
    with pytest.raises(NonFiniteError):
        RewardBatch(**given, rewards=[1.0, INF])
    for rewards in ([1.0, None], [torch.tensor(1.0), None]):
        assert RewardBatch(**given, rewards=rewards).rewards.isnan().tolist() == [False, True]
    for components in ([[1.0, None], [2.0, 3.0]], [torch.tensor([1.0, NAN]), [2.0, 3.0]]):
        held = RewardComponentsBatch(**given, reward_components=components).reward_components
        assert held.isnan().tolist() == [[False, True], [False, False]]
    for components in ([[1.0, 2.0], None], [torch.tensor([1.0, 2.0]), None]):
        held = RewardComponentsBatch(**given, reward_components=components).reward_components
        assert held.isnan().tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("level", ["off", "structure"])
def test_lower_levels_do_not_look(level: Any) -> None:
    with settings(level=level):
        assert policy_batch(old_log_probs=replaced(OLD, 0, NAN)).old_log_probs.isnan().any()
