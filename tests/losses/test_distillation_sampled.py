"""Distillation on the sampled token as policy objectives: values and gradients of the formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rollout_contract.corrections import Correction
from rollout_contract.distillation import (
    FrontLoadedReverseKL,
    RolloutReverseKL,
    SampledReverseKL,
    WeightedReverseKL,
)
from rollout_contract.errors import CorrectionError, MissingFieldError
from rollout_contract.losses.policy import policy_loss
from rollout_contract.schemas import KLBatch
from tests.losses.opd_steps import GARBAGE, LOG_PROBS, MASK, OLD, ROLLOUT, TEACHER, live, masked, numbers, step

OBJECTIVES = [
    SampledReverseKL(),
    WeightedReverseKL(),
    WeightedReverseKL(weight_max=None),
    RolloutReverseKL(),
    RolloutReverseKL(delta_low=0.1, drift=1e-3),
    FrontLoadedReverseKL(),
    FrontLoadedReverseKL(gamma=0.5),
]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)


def gradient(objective: Any, **changes: Any) -> tuple[float, list[float], dict[str, float]]:
    log_probs = changes.pop("log_probs", live())
    loss = policy_loss(step(**changes).bind(log_probs=log_probs), objective)
    loss.value.backward()
    return loss.value.item(), log_probs.grad.tolist(), loss.metrics.compute()


def per_token(term: Any) -> list[float]:
    columns = zip(LOG_PROBS, OLD, ROLLOUT, TEACHER, MASK, strict=True)
    return [term(lp, o, b, t) * m for lp, o, b, t, m in columns]


def test_sampled_reverse_kl() -> None:
    value, found, metrics = gradient(SampledReverseKL())
    assert value == pytest.approx(sum(per_token(lambda lp, o, b, t: (lp - t) * lp)))
    expected = per_token(lambda lp, o, b, t: lp - t)
    assert found == pytest.approx(expected)
    assert metrics["reverse_kl"] == pytest.approx(sum(expected) / 4)


def test_weighted_reverse_kl_has_a_fixed_bounded_weight() -> None:
    expected = per_token(lambda lp, o, b, t: min(math.exp(lp - o), 1.1) * (lp - t))
    _, found, metrics = gradient(WeightedReverseKL(weight_max=1.1))
    assert found == pytest.approx(expected)
    above = per_token(lambda lp, o, b, t: math.exp(lp - o) > 1.1)
    assert metrics["clip_fraction"] == pytest.approx(sum(above) / 4)


def test_rollout_reverse_kl_differentiates_the_ratio() -> None:
    expected = per_token(lambda lp, o, b, t: (lp - t) * math.exp(lp - b))
    value, found, _ = gradient(RolloutReverseKL())
    assert found == pytest.approx(expected)
    assert value == pytest.approx(sum(expected))


def test_rollout_reverse_kl_drops_and_drifts() -> None:
    low, drift = 0.005, 1e-3

    def slope(lp: float, o: float, b: float, t: float) -> float:
        kept = math.exp(lp) - math.exp(b) >= -low
        return kept * (lp - t) * math.exp(lp - b) + 2 * drift * (lp - b)

    dropped = per_token(lambda lp, o, b, t: math.exp(lp) - math.exp(b) < -low)
    assert 0 < sum(dropped) < 4
    _, found, metrics = gradient(RolloutReverseKL(delta_low=low, drift=drift))
    assert found == pytest.approx(per_token(slope))
    assert metrics["dropped_fraction"] == pytest.approx(sum(dropped) / 4)
    mismatch = per_token(lambda lp, o, b, t: math.exp(lp - b) - 1 - (lp - b))
    chosen = [k for k, d in zip(mismatch, dropped, strict=True) if d]
    assert metrics["mismatch_k3_dropped"] == pytest.approx(sum(chosen) / len(chosen))


def test_front_loaded_reverse_kl_weighs_early_tokens_more() -> None:
    gaps = per_token(lambda lp, o, b, t: t - b)
    weights, gamma = [], 0.5
    for part in (gaps[:3], gaps[3:]):
        sizes = [abs(gap) for gap in part]
        weights += [1 + gamma * (1 - sum(sizes[:i]) / sum(sizes)) for i in range(len(part))]
    _, found, _ = gradient(FrontLoadedReverseKL(gamma=gamma))
    assert found == pytest.approx([-w * gap for w, gap in zip(weights, gaps, strict=True)])


@every_objective
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_entries_reach_neither_value_nor_gradient(objective: Any, garbage: float) -> None:
    fields = {"old_log_probs": OLD, "rollout_log_probs": ROLLOUT, "teacher_log_probs": TEACHER}
    poisoned = {name: masked(values, garbage) for name, values in fields.items()}
    log_probs = masked(LOG_PROBS, garbage).requires_grad_()
    assert gradient(objective, **poisoned, log_probs=log_probs) == gradient(objective)


@every_objective
def test_everything_stays_finite(objective: Any) -> None:
    far = {"rollout_log_probs": numbers([-500.0] * 5), "old_log_probs": numbers([-500.0] * 5)}
    value, found, _ = gradient(objective, loss_mask=[1] * 5, **far)
    assert math.isfinite(value)
    assert all(map(math.isfinite, found))


@every_objective
def test_samples_are_independent(objective: Any) -> None:
    log_probs = live()
    parts = zip(step().split(samples=1), log_probs.split([3, 2]), strict=True)
    total = sum(policy_loss(part.bind(log_probs=own), objective).value for part, own in parts)
    torch.testing.assert_close(total, policy_loss(step().bind(log_probs=log_probs), objective).value)


@every_objective
def test_a_teacher_that_agrees_leaves_nothing_to_learn(objective: Any) -> None:
    same = {"teacher_log_probs": numbers(LOG_PROBS), "rollout_log_probs": numbers(LOG_PROBS)}
    _, found, metrics = gradient(objective, **same)
    assert found == pytest.approx([0.0] * 5)
    assert metrics["reverse_kl"] == 0.0


def test_what_contains_the_ratio_to_the_sampler_refuses_another_weight() -> None:
    batch = step()
    corrected = batch.corrected(Correction(batch, weights=torch.full((5,), 0.5, dtype=torch.float64))).weighted("sum")
    bound = corrected.bind(log_probs=live())
    with pytest.raises(CorrectionError):
        policy_loss(bound, RolloutReverseKL())
    assert policy_loss(bound, SampledReverseKL()).value.item() == pytest.approx(gradient(SampledReverseKL())[0] / 2)


def test_a_batch_without_a_teacher_is_refused() -> None:
    batch = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=numbers([-1.0])).weighted("sum")
    with pytest.raises(MissingFieldError, match="teacher_log_probs"):
        policy_loss(batch.bind(log_probs=live([-1.0])), SampledReverseKL())  # type: ignore[arg-type]
