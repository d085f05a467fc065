"""Entropy as a live bonus and as a metric."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rollout_contract.errors import MissingFieldError, NoGraphError
from rollout_contract.log_probs import score_logits
from rollout_contract.losses.entropy import entropy_bonus, entropy_metrics
from rollout_contract.schemas import EntropyBatch, ObservedEntropyBatch

ENTROPY = [0.5, 9.0, 1.5, 2.0]
MASK = [1, 0, 1, 1]


def numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch(mask: list[int] = MASK) -> EntropyBatch:
    return EntropyBatch(response_lengths=[2, 2], loss_mask=mask).weighted("token-mean")


def test_the_bonus_is_the_mean_entropy_and_trains() -> None:
    entropy = numbers(ENTROPY).requires_grad_()
    bonus = entropy_bonus(batch().bind(entropy=entropy))
    assert bonus.value.item() == pytest.approx(4.0 / 3)
    bonus.backward()
    torch.testing.assert_close(entropy.grad, numbers([1 / 3, 0.0, 1 / 3, 1 / 3]))
    assert bonus.metrics.compute() == pytest.approx({"entropy": 4.0 / 3, "entropy_bonus": 4.0 / 3})
    assert all(not metric.parts.requires_grad for metric in bonus.metrics.values())


def test_the_gradient_on_logits_is_that_of_the_formula() -> None:
    """dH / dz_v = -p_v (log p_v + H)."""
    logits = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scores = score_logits(logits, torch.zeros(4, dtype=torch.long))
    entropy_bonus(batch().bind(entropy=scores.entropy)).backward()
    log_p = logits.detach().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    weights = numbers([1 / 3, 0.0, 1 / 3, 1 / 3]).unsqueeze(-1)
    torch.testing.assert_close(logits.grad, -weights * log_p.exp() * (log_p + entropy))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entropy_does_not_count(garbage: float) -> None:
    entropy = numbers([0.5, garbage, 1.5, 2.0]).requires_grad_()
    bonus = entropy_bonus(batch().bind(entropy=entropy))
    bonus.backward()
    assert bonus.value.item() == pytest.approx(4.0 / 3)
    torch.testing.assert_close(entropy.grad, numbers([1 / 3, 0.0, 1 / 3, 1 / 3]))
    assert bonus.metrics.compute()["entropy"] == pytest.approx(4.0 / 3)


def test_nothing_trained_gives_zero_with_a_graph() -> None:
    entropy = numbers(ENTROPY).requires_grad_()
    bonus = entropy_bonus(batch([0, 0, 0, 0]).bind(entropy=entropy))
    bonus.backward()
    assert bonus.value.item() == 0.0
    assert torch.equal(entropy.grad, torch.zeros(4, dtype=torch.float64))


def test_a_bonus_without_a_graph_is_refused() -> None:
    with pytest.raises(NoGraphError, match="entropy"):
        batch().bind(entropy=numbers(ENTROPY))


def test_an_unbound_entropy_is_named() -> None:
    with pytest.raises(MissingFieldError, match="entropy"):
        entropy_bonus(batch())


def test_the_metric_form_cuts_the_graph() -> None:
    live = numbers(ENTROPY).requires_grad_()
    watched = ObservedEntropyBatch(response_lengths=[2, 2], loss_mask=MASK).bind(observed_entropy=live)
    found = entropy_metrics(watched)
    assert all(not metric.parts.requires_grad for metric in found.values())
    assert found.compute() == pytest.approx({"entropy": 4.0 / 3, "entropy_min": 0.5, "entropy_max": 2.0})
