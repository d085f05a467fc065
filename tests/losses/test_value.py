"""The value loss: values and gradients, by hand, against loops, and what must not change them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollout_contract import errors
from rollout_contract.corrections.correction import Correction
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.value import CriticError, value_loss
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import RewardBatch, ValueBatch
from tests.advantages.batches import Case, make_case, over_cases
from tests.reference import values as reference
from tests.reference.scalars import gradients, leaves, total
from tests.reference.scalars import rows as scalars

ERRORS = {
    "plain": CriticError(),
    "whole": CriticError(half=False),
    "clipped": CriticError(clip=0.3),
    "clipped whole": CriticError(clip=0.3, half=False),
    "huber": CriticError(huber_delta=0.5),
    "clipped huber": CriticError(clip=0.3, huber_delta=0.5),
}


def step_of(case: Case, dtype: torch.dtype = torch.float64) -> ValueBatch:
    """Old values and returns are the case's values and token rewards; predictions its log-probs."""
    source = case.batch(dtype)
    return ValueBatch(
        response_lengths=case.lengths,
        loss_mask=source.loss_mask,
        group_ids=case.group_ids,
        values=source.values,
        returns=source.token_rewards,
    ).weighted("token-mean")


def predictions_of(case: Case, dtype: torch.dtype = torch.float64) -> Tensor:
    return case.flat(case.log_probs).to(dtype).requires_grad_()


def run(step: ValueBatch, predictions: Tensor, error: CriticError) -> tuple[Loss, Tensor]:
    loss = value_loss(step.bind(value_predictions=predictions), error)
    (gradient,) = torch.autograd.grad(loss.value, predictions)
    return loss, gradient


def one_sample(values: list[float], returns: list[float], predictions: list[float]) -> tuple[ValueBatch, Tensor]:
    step = ValueBatch(response_lengths=[len(values)], loss_mask=[[1] * len(values)], values=[values], returns=[returns])
    return step.weighted("sum"), torch.tensor(predictions, requires_grad=True)


def test_squared_error_by_hand() -> None:
    step, predictions = one_sample([0.0, 0.0], [1.0, 5.0], [3.0, 4.0])
    loss, gradient = run(step, predictions, CriticError())
    assert (float(loss.value.detach()), gradient.tolist()) == (2.5, [2.0, -1.0])
    loss, gradient = run(step, predictions, CriticError(half=False))
    assert (float(loss.value.detach()), gradient.tolist()) == (5.0, [4.0, -2.0])


def test_clipping_by_hand() -> None:
    """From an old value of 0 with clip 1/2: what moved far towards the return has no gradient, what moved away has."""
    step, predictions = one_sample([0.0, 0.0, 0.0], [2.0, 2.0, 2.0], [1.0, -1.0, 0.25])
    loss, gradient = run(step, predictions, CriticError(clip=0.5))
    # Errors 1, 3, 1.75; clipped 1.5, 2.5, 1.75.
    assert float(loss.value.detach()) == (1.5**2 + 3.0**2 + 1.75**2) / 2
    assert gradient.tolist() == [0.0, -3.0, -1.75]
    found = loss.metrics.compute()
    assert found["value_clip_fraction"] == pytest.approx(1 / 3)
    assert found["value_moved_fraction"] == pytest.approx(2 / 3)
    assert found["value_error"] == pytest.approx((1 + 3 + 1.75) / 3)
    assert (found["return_mean"], found["value_loss"]) == (2.0, float(loss.value.detach()))
    assert found["value_mean"] == pytest.approx(0.25 / 3)


def test_huber_by_hand() -> None:
    step, predictions = one_sample([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, -5.0, 2.0])
    loss, gradient = run(step, predictions, CriticError(huber_delta=2.0))
    assert float(loss.value.detach()) == 0.5 + 2 * (5 - 1) + 2.0
    assert gradient.tolist() == [1.0, -2.0, 2.0]


@pytest.mark.parametrize("name", ERRORS)
@over_cases
def test_value_and_gradient_match_the_loop(name: str, case: Case) -> None:
    error, step, predictions = ERRORS[name], step_of(case), predictions_of(case)
    loss, gradient = run(step, predictions, error)

    live = leaves(case.log_probs)
    terms = reference.value_loss(
        live,
        scalars(case.values),
        scalars(case.token_rewards),
        case.mask,
        clip=error.clip,
        half=error.half,
        huber_delta=error.huber_delta,
    )
    summed = total(term for row in terms for term in row) / max(sum(map(sum, case.mask)), 1)
    torch.testing.assert_close(loss.value.detach(), summed.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, case.flat(gradients(summed, live)), rtol=1e-10, atol=1e-12)


SOME = make_case(11, [4, 0, 5, 1, 3], 2, "real")


@pytest.mark.parametrize("name", ERRORS)
def test_gradcheck(name: str) -> None:
    step = step_of(SOME)

    def loss(predictions: Tensor) -> Tensor:
        return value_loss(step.bind(value_predictions=predictions), ERRORS[name]).value

    assert torch.autograd.gradcheck(loss, (predictions_of(SOME),))


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_values_are_never_seen(name: str, garbage: float) -> None:
    clean, source = step_of(SOME), SOME.batch()
    mask = source.loss_mask
    fields = {"values": source.values.where(mask, garbage), "returns": source.token_rewards.where(mask, garbage)}
    dirty = ValueBatch(response_lengths=SOME.lengths, loss_mask=mask, **fields).weighted("token-mean")
    predictions = predictions_of(SOME)
    soiled = predictions.detach().where(mask, garbage).requires_grad_()
    (loss, gradient), (other, moved) = (
        run(clean, predictions, ERRORS[name]),
        run(dirty, soiled, ERRORS[name]),
    )
    assert loss.value.tolist() == other.value.tolist()
    assert gradient.tolist() == moved.tolist()
    assert loss.metrics.compute() == other.metrics.compute()
    assert bool((moved[~mask] == 0).all())


@pytest.mark.parametrize("name", ERRORS)
def test_splits_change_nothing(name: str) -> None:
    step, predictions = step_of(SOME), predictions_of(SOME)
    whole, gradient = run(step, predictions, ERRORS[name])
    parts: list[Loss] = []
    start = 0
    for micro in step.split(samples=2):
        end = start + micro.layout.num_tokens
        parts.append(value_loss(micro.bind(value_predictions=predictions[start:end]), ERRORS[name]))
        start = end
    summed = torch.stack([part.value for part in parts]).sum()
    torch.testing.assert_close(summed, whole.value)
    torch.testing.assert_close(torch.autograd.grad(summed, predictions)[0], gradient)
    merged = parts[0].metrics
    for part in parts[1:]:
        merged = merged.merge(part.metrics)
    assert merged.compute() == pytest.approx(whole.metrics.compute())


@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [3]])
def test_nothing_to_train_gives_zero_with_a_graph(lengths: list[int]) -> None:
    count = sum(lengths)
    step = ValueBatch(
        response_lengths=lengths,
        loss_mask=torch.zeros(count, dtype=torch.bool),
        values=torch.full((count,), math.nan),
        returns=torch.full((count,), math.inf),
    ).weighted("seq-mean-token-mean")
    predictions = torch.full((count,), -math.inf, requires_grad=True)
    loss, gradient = run(step, predictions, CriticError(clip=0.2))
    assert (float(loss.value.detach()), gradient.tolist()) == (0.0, [0.0] * count)
    assert all(math.isfinite(number) for number in loss.metrics.compute().values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_has_the_dtype_of_the_predictions(dtype: torch.dtype) -> None:
    other = torch.float64 if dtype == torch.float32 else torch.float32
    loss, gradient = run(step_of(SOME, other), predictions_of(SOME, dtype), CriticError(clip=0.2))
    assert (loss.value.dtype, gradient.dtype) == (dtype, dtype)


def test_only_predictions_are_trained_and_metrics_carry_no_graph() -> None:
    source = SOME.batch()
    values, returns = source.values.clone().requires_grad_(), source.token_rewards.clone().requires_grad_()
    step = ValueBatch(
        response_lengths=SOME.lengths, loss_mask=source.loss_mask, values=values * 1.0, returns=returns * 1.0
    ).weighted("token-mean")
    loss = value_loss(step.bind(value_predictions=predictions_of(SOME)), CriticError(clip=0.2))
    loss.backward()
    assert (values.grad, returns.grad) == (None, None)
    assert all(metric.parts.grad_fn is None for metric in loss.metrics.values())


def test_importance_weights_are_not_applied() -> None:
    """And backward says so, unless another loss of the sum applies them."""
    step = ValueBatch(response_lengths=[2], loss_mask=[[1, 1]], values=[[0.0, 0.0]], returns=[[1.0, 1.0]])
    plain, predictions = step.weighted("sum"), torch.tensor([2.0, 3.0], requires_grad=True)
    corrected = step.corrected(Correction(step, weights=torch.tensor([5.0, 7.0]))).weighted("sum")
    loss, gradient = run(corrected, predictions, CriticError())
    assert gradient.tolist() == run(plain, predictions, CriticError())[1].tolist() == [1.0, 2.0]
    with pytest.raises(errors.CorrectionError):
        loss.backward()


def test_a_rejected_token_leaves_the_loss() -> None:
    step = ValueBatch(response_lengths=[2], loss_mask=[[1, 1]], values=[[0.0, 0.0]], returns=[[1.0, 1.0]])
    kept = step.corrected(Correction(step, mask=torch.tensor([True, False]))).weighted("token-mean")
    loss, gradient = run(kept, torch.tensor([2.0, 3.0], requires_grad=True), CriticError())
    assert (float(loss.value.detach()), gradient.tolist()) == (0.5, [1.0, 0.0])


def test_several_epochs_over_one_batch() -> None:
    step, critic = step_of(SOME), torch.nn.Linear(1, 1).double()
    inputs = torch.ones(step.layout.num_tokens, 1, dtype=torch.float64)
    for _ in range(3):
        value_loss(step.bind(value_predictions=critic(inputs)[:, 0]), CriticError(clip=0.2)).backward()


def test_without_a_graph_it_evaluates() -> None:
    step = step_of(SOME)
    with torch.no_grad():
        loss = value_loss(step.bind(value_predictions=predictions_of(SOME).detach()))
    assert not loss.value.requires_grad


def test_what_is_missing_is_named() -> None:
    step = ValueBatch(response_lengths=[1], loss_mask=[[1]], values=[[0.0]], returns=[[1.0]])
    live = torch.zeros(1, requires_grad=True)
    with pytest.raises(errors.MissingFieldError, match="loss_weights"):
        value_loss(step.bind(value_predictions=live))
    with pytest.raises(errors.MissingFieldError, match="value_predictions"):
        value_loss(step.weighted("sum"))
    other: Any = RewardBatch(response_lengths=[1], loss_mask=[[1]], rewards=[1.0])
    with pytest.raises((errors.MissingFieldError, TypeError), match="ValueBatch"):
        value_loss(other)
    with pytest.raises(errors.NoGraphError, match="value_predictions"):
        step.bind(value_predictions=torch.zeros(1))
    assert issubclass(ValueBatch, RolloutBatch)


@pytest.mark.parametrize("option", ["clip", "huber_delta"])
def test_wrong_options(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        CriticError(**{option: 0.0})
    with pytest.raises(ValidationError, match="frozen"):
        CriticError().half = False
