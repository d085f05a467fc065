"""KL in the reward: a constant, and the coefficient that adapts."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from rollout_contract import kl
from rollout_contract.errors import MissingFieldError, NonFiniteError
from rollout_contract.kl_reward import AdaptiveKLCoefficient, kl_penalty, kl_penalty_metrics, penalised_rewards
from rollout_contract.schemas import KLBatch, KLRewardBatch
from tests.losses.kl_steps import LENGTHS, MASK, OLD, REFERENCE, numbers, step

REWARDS = [0.0, 0.0, 1.0, 0.0, 2.0, -1.0]


def reward_batch(**changes: torch.Tensor) -> KLRewardBatch:
    fields = {"old_log_probs": numbers(OLD), "ref_log_probs": numbers(REFERENCE), "token_rewards": numbers(REWARDS)}
    return KLRewardBatch(response_lengths=LENGTHS, loss_mask=MASK, **(fields | changes))


def test_rewards_lose_coefficient_times_k1() -> None:
    found = penalised_rewards(reward_batch(), 0.1)
    expected = [(r - 0.1 * (o - b)) * m for r, o, b, m in zip(REWARDS, OLD, REFERENCE, MASK, strict=True)]
    torch.testing.assert_close(found, numbers(expected))


def test_the_estimator_can_be_chosen() -> None:
    found = kl_penalty(reward_batch(), kl.K3())
    expected = [(math.exp(b - o) - 1 - (b - o)) * m for o, b, m in zip(OLD, REFERENCE, MASK, strict=True)]
    torch.testing.assert_close(found, numbers(expected))


def test_it_is_a_constant_even_of_live_inputs_and_does_not_touch_them() -> None:
    live = {name: numbers(OLD).requires_grad_() for name in ("old_log_probs", "ref_log_probs")}
    batch = reward_batch(**live)
    found = penalised_rewards(batch, 0.1)
    assert not found.requires_grad
    assert found.grad_fn is None
    assert batch.token_rewards.tolist() == REWARDS
    batch.verify()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entries_give_zero(garbage: float) -> None:
    poisoned = [v if m else garbage for v, m in zip(OLD, MASK, strict=True)]
    found = penalised_rewards(reward_batch(old_log_probs=numbers(poisoned)), 0.1)
    assert torch.equal(found, penalised_rewards(reward_batch(), 0.1))
    assert found[1] == 0.0


def test_the_metric_is_the_mean_penalty() -> None:
    found = kl_penalty_metrics(reward_batch()).compute()["kl_in_reward"]
    terms = [(o - b) for o, b, m in zip(OLD, REFERENCE, MASK, strict=True) if m]
    assert found == pytest.approx(sum(terms) / 5)


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_it_names_what_the_batch_lacks() -> None:
    batch = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=numbers([-1.0]))
    with pytest.raises(MissingFieldError, match="old_log_probs"):
        kl_penalty(batch)  # type: ignore[arg-type]
    with pytest.raises(MissingFieldError, match="token_rewards"):
        penalised_rewards(step(), 0.1)  # type: ignore[arg-type]


# -- the adaptive coefficient ------------------------------------------------------------------------------------------

START = AdaptiveKLCoefficient(value=0.2, target=6.0, horizon=10_000)


@pytest.mark.parametrize(
    ("observed", "factor"),
    [
        (6.0, 1.0),
        (6.6, 1.0 + 0.1 * 0.0256),
        (60.0, 1.0 + 0.2 * 0.0256),  # the error is clamped
        (0.0, 1.0 - 0.2 * 0.0256),
        (-3.0, 1.0 - 0.2 * 0.0256),
    ],
)
def test_one_update(observed: float, factor: float) -> None:
    assert START.updated(observed, 256).value == pytest.approx(0.2 * factor)


def test_it_is_a_value_and_its_dump_is_its_checkpoint() -> None:
    later = START.updated(12.0, 256)
    assert START.value == 0.2
    assert AdaptiveKLCoefficient(**later.model_dump()) == later
    with pytest.raises(ValidationError):
        START.value = 1.0  # type: ignore[misc]


def test_it_settles_where_the_kl_is_on_target() -> None:
    """A toy policy whose KL is 1 / coefficient: the coefficient must come to 1 / target."""
    coefficient = AdaptiveKLCoefficient(value=1.0, target=4.0, horizon=1_000)
    for _ in range(400):
        coefficient = coefficient.updated(1.0 / coefficient.value, 256)
    assert coefficient.value == pytest.approx(0.25, rel=1e-3)


def test_many_samples_never_make_it_negative() -> None:
    assert START.updated(0.0, 1_000_000).value == 0.0


@pytest.mark.parametrize("observed", [math.nan, math.inf])
def test_a_kl_that_is_no_number_is_refused(observed: float) -> None:
    with pytest.raises(NonFiniteError, match="finite number of nats"):
        START.updated(observed, 1)


@pytest.mark.parametrize("wrong", [{"value": -0.1}, {"target": 0.0}, {"horizon": 0.0}, {"max_error": 0.0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        AdaptiveKLCoefficient(**({"value": 0.2, "target": 6.0, "horizon": 100.0} | wrong))
