"""Distillation in the advantages: always constants, one per token."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.distillation import (
    minillm_advantages,
    mixed_teacher,
    opd_advantages,
    reverse_kl,
    reverse_kl_advantages,
    reverse_kl_metrics,
)
from rollout_contract.errors import DeviceError, MissingFieldError, ShapeError
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import Reinforce
from rollout_contract.schemas import AdvantageBatch, KLBatch, OPDBatch, ReverseKLBatch, TeachersBatch
from tests.losses.opd_steps import (
    ADVANTAGES,
    GARBAGE,
    LENGTHS,
    LOG_PROBS,
    MASK,
    OLD,
    TEACHER,
    live,
    masked,
    numbers,
    step,
)

GAPS = [(o - t) * m for o, t, m in zip(OLD, TEACHER, MASK, strict=True)]


def precomputed(values: Tensor) -> ReverseKLBatch:
    return ReverseKLBatch(response_lengths=LENGTHS, loss_mask=MASK, reverse_kl=values)


def test_advantages_lose_coef_times_the_reverse_kl() -> None:
    expected = [(a - 0.5 * (o - t)) * m for a, o, t, m in zip(ADVANTAGES, OLD, TEACHER, MASK, strict=True)]
    torch.testing.assert_close(opd_advantages(step(), numbers(ADVANTAGES), coef=0.5), numbers(expected))


def test_without_a_task_the_teacher_alone_is_followed() -> None:
    """MOPD: teacher minus old student."""
    torch.testing.assert_close(opd_advantages(step()), numbers([-gap for gap in GAPS]))


def test_a_precomputed_reverse_kl_gives_the_same() -> None:
    found = reverse_kl_advantages(precomputed(reverse_kl(step())), numbers(ADVANTAGES), coef=0.5)
    torch.testing.assert_close(found, opd_advantages(step(), numbers(ADVANTAGES), coef=0.5))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_entries_give_zero(garbage: float) -> None:
    expected = opd_advantages(step(), numbers(ADVANTAGES))
    poisoned = step(old_log_probs=masked(OLD, garbage), teacher_log_probs=masked(TEACHER, garbage))
    found = opd_advantages(poisoned, masked(ADVANTAGES, garbage))
    assert torch.equal(found, expected)
    assert found[1] == 0.0


def test_live_inputs_leave_no_graph() -> None:
    sources = {"old_log_probs": live(OLD), "teacher_log_probs": live(TEACHER)}
    advantages = live(ADVANTAGES)
    for found in (
        opd_advantages(step(**sources), advantages),
        minillm_advantages(step(**sources), 0.9),
        reverse_kl_advantages(precomputed(live(GAPS)), advantages),
        reverse_kl(step(**sources)),
    ):
        assert not found.requires_grad


@pytest.mark.parametrize(
    "wrong", [torch.tensor(1.0), torch.ones(2), torch.ones(1), torch.ones(5, 1), torch.ones(2, 3)], ids=str
)
def test_nothing_is_broadcast(wrong: Tensor) -> None:
    for give in (
        lambda: opd_advantages(step(), wrong),
        lambda: reverse_kl_advantages(precomputed(numbers(GAPS)), wrong),
    ):
        with pytest.raises(ShapeError, match="one per response token") as caught:
            give()
        assert "layout.expand" in caught.value.hint


def test_a_number_is_no_advantage() -> None:
    with pytest.raises(ValueError, match="advantages"):
        opd_advantages(step(), 1.0)  # type: ignore[arg-type]


def test_advantages_on_another_device_are_refused() -> None:
    with pytest.raises(DeviceError, match="where the batch is"):
        opd_advantages(step(), torch.ones(5, device="meta"))


def test_a_negative_coefficient_is_refused() -> None:
    with pytest.raises(ValueError, match="coef"):
        opd_advantages(step(), coef=-1.0)


def test_a_batch_without_a_teacher_is_refused() -> None:
    batch = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=numbers([-1.0]))
    with pytest.raises(MissingFieldError, match="teacher_log_probs"):
        opd_advantages(batch)  # type: ignore[arg-type]


def test_integers_and_other_dtypes_take_the_dtype_of_the_scores() -> None:
    assert opd_advantages(step(), torch.ones(5, dtype=torch.long)).dtype == torch.float64
    half = {name: numbers(OLD, torch.float32) for name in ("old_log_probs", "teacher_log_probs", "rollout_log_probs")}
    assert opd_advantages(step(**half), numbers(ADVANTAGES)).dtype == torch.float32


def test_the_metric_is_the_mean_over_trained_tokens() -> None:
    expected = {
        "reverse_kl": sum(GAPS) / 4,
        "reverse_kl_abs": sum(map(abs, GAPS)) / 4,
        "reverse_kl_max": max(gap for gap, keep in zip(GAPS, MASK, strict=True) if keep),
    }
    assert reverse_kl_metrics(step()).compute() == pytest.approx(expected)
    assert reverse_kl_metrics(precomputed(masked(GAPS, math.nan))).compute() == pytest.approx(expected)


def test_the_policy_gradient_follows_the_advantage() -> None:
    class Distilled(AdvantageBatch, OPDBatch):
        """A policy gradient towards a teacher."""

    source = OPDBatch(
        response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=numbers(OLD), teacher_log_probs=numbers(TEACHER)
    )
    batch = source.extend(Distilled, advantages=opd_advantages(source)).weighted("sum")
    log_probs = live()
    policy_loss(batch.bind(log_probs=log_probs), Reinforce()).backward()
    torch.testing.assert_close(log_probs.grad, numbers(GAPS))


# -- MiniLLM -----------------------------------------------------------------------------------------------------------


def minillm_by_hand(gamma: float, *, length_normalised: bool, skip: bool, from_start: bool = False) -> list[float]:
    result = []
    for start, length in zip([0, *itertools.accumulate(LENGTHS)], LENGTHS, strict=False):
        for t in range(length):
            total = count = 0.0
            for i in range(t, length):
                steps = i if from_start else (sum(MASK[start + t : start + i]) if skip else i - t)
                total -= gamma**steps * GAPS[start + i]
                count += gamma**steps * MASK[start + i]
            result.append(MASK[start + t] * (total / count if length_normalised and count else total))
    return result


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("length_normalised", [False, True])
@pytest.mark.parametrize("masked_tokens", ["skip", "step"])
def test_minillm_sums_what_follows(gamma: float, length_normalised: bool, masked_tokens: Any) -> None:
    found = minillm_advantages(step(), gamma, length_normalised=length_normalised, masked=masked_tokens)
    expected = minillm_by_hand(gamma, length_normalised=length_normalised, skip=masked_tokens == "skip")
    torch.testing.assert_close(found, numbers(expected))


def test_minillm_as_trls_code_discounts() -> None:
    found = minillm_advantages(step(), 0.9, masked="step", from_start=True)
    expected = minillm_by_hand(0.9, length_normalised=False, skip=False, from_start=True)
    torch.testing.assert_close(found, numbers(expected))


def test_minillm_of_nothing() -> None:
    empty = step(
        response_lengths=[],
        loss_mask=torch.zeros(0),
        **{name: torch.zeros(0) for name in ("old_log_probs", "rollout_log_probs", "teacher_log_probs")},
    )
    assert minillm_advantages(empty, 0.9, length_normalised=True).shape == (0,)
    nothing_trained = minillm_advantages(step(loss_mask=[0] * 5), 0.9, length_normalised=True)
    assert torch.equal(nothing_trained, torch.zeros(5, dtype=torch.float64))


# -- several teachers --------------------------------------------------------------------------------------------------


def teachers(weights: list[list[float]], scores: list[list[float]]) -> TeachersBatch:
    return TeachersBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        teachers_log_probs=numbers(scores),  # type: ignore[arg-type]
        teacher_weights=numbers(weights),  # type: ignore[arg-type]
    )


SCORES = [[-1.0, -2.0], [-9.0, -9.0], [-3.0, -4.0], [-5.0, -6.0], [-7.0, -8.0]]


def test_one_hot_weights_choose_a_teacher_per_sample() -> None:
    found = mixed_teacher(teachers([[1.0, 0.0], [0.0, 1.0]], SCORES))
    assert found.tolist() == [-1.0, 0.0, -3.0, -6.0, -8.0]


def test_weights_average_the_reverse_kls() -> None:
    found = mixed_teacher(teachers([[0.25, 0.75], [0.5, 0.5]], SCORES))
    torch.testing.assert_close(found, numbers([-1.75, 0.0, -3.75, -5.5, -7.5]))
    mixture = opd_advantages(step(teacher_log_probs=found))
    one, other = (opd_advantages(step(teacher_log_probs=numbers([s[k] for s in SCORES]))) for k in (0, 1))
    weights = numbers([0.25, 0.25, 0.25, 0.5, 0.5])
    torch.testing.assert_close(mixture, weights * one + (1 - weights) * other)


def test_a_teacher_that_is_not_asked_has_no_influence() -> None:
    unasked = [[-1.0, -1e30], [-9.0, -9.0], [-3.0, -1e30], [-1e30, -6.0], [-1e30, -8.0]]
    found = mixed_teacher(teachers([[1.0, 0.0], [0.0, 1.0]], unasked))
    assert found.tolist() == [-1.0, 0.0, -3.0, -6.0, -8.0]


def test_a_mixed_teacher_is_a_constant() -> None:
    batch = TeachersBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        teachers_log_probs=numbers(SCORES).requires_grad_(),  # type: ignore[arg-type]
        teacher_weights=numbers([[1.0, 0.0]] * 2),  # type: ignore[arg-type]
    )
    assert not mixed_teacher(batch).requires_grad


def test_the_log_probs_in_use_are_the_old_ones() -> None:
    """The advantage must not move with the current policy: binding another one changes nothing."""
    batch = step()
    assert torch.equal(minillm_advantages(batch), minillm_advantages(batch.bind(log_probs=live(LOG_PROBS))))
