"""Which KL each estimator really descends: the expectation of its gradient, exactly, over a small vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import kl
from tests.losses.kl_steps import label, quiet_kl_loss, step

VOCAB = 5
GENERATOR = torch.Generator().manual_seed(0)
LOGITS, REFERENCE, OLD = (torch.randn(VOCAB, generator=GENERATOR, dtype=torch.float64) for _ in range(3))


def expected_gradient(estimator: Any, sampler: Tensor) -> Tensor:
    """sum over tokens y of sampler(y) x d term(y) / d logits of the current policy."""
    logits = LOGITS.clone().requires_grad_()
    every_token = {
        "response_lengths": [VOCAB],
        "loss_mask": [1] * VOCAB,
        "ref_log_probs": REFERENCE.log_softmax(-1),
        "old_log_probs": sampler,
        "rollout_log_probs": sampler,
    }
    gradient = torch.zeros_like(logits)
    for token in range(VOCAB):
        only = [int(other == token) for other in range(VOCAB)]
        batch = step(**(every_token | {"loss_mask": only})).weighted("sum")
        loss = quiet_kl_loss(batch.bind(log_probs=logits.log_softmax(-1)), estimator)
        gradient += sampler.exp()[token] * torch.autograd.grad(loss.value, logits)[0]
    return gradient


def exact_gradient(divergence: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(divergence(logits.log_softmax(-1), REFERENCE.log_softmax(-1)), logits)[0]


REVERSE = exact_gradient(lambda p, q: (p.exp() * (p - q)).sum())
FORWARD = exact_gradient(lambda p, q: (q.exp() * (q - p)).sum())
POLICY, OTHER = LOGITS.log_softmax(-1), OLD.log_softmax(-1)

ON_POLICY = [
    kl.K2(),
    kl.StraightThroughKL(),
    kl.StraightThroughKL(estimator=kl.K1()),
    kl.ScoreFunctionKL(estimator=kl.K1()),
    kl.ScoreFunctionKL(),
    kl.UnbiasedKL(),
    kl.BehaviourKL(),
]


@pytest.mark.parametrize("estimator", ON_POLICY, ids=label)
def test_on_the_policys_own_samples_it_is_the_reverse_kl(estimator: Any) -> None:
    torch.testing.assert_close(expected_gradient(estimator, POLICY), REVERSE)


@pytest.mark.parametrize("plain", [kl.K1(), kl.K3()], ids=label)
def test_with_the_live_weight_it_stays_so_on_another_policys_samples(plain: kl.SampledKL) -> None:
    for estimator in (kl.UnbiasedKL(estimator=plain), kl.BehaviourKL(estimator=plain)):
        torch.testing.assert_close(expected_gradient(estimator, OTHER), REVERSE)


def test_without_the_weight_it_does_not() -> None:
    assert not torch.allclose(expected_gradient(kl.K2(), OTHER), REVERSE, rtol=0.1)


def test_k1_trains_nothing() -> None:
    torch.testing.assert_close(expected_gradient(kl.K1(), POLICY), torch.zeros_like(REVERSE))


def test_plain_k3_descends_the_forward_kl() -> None:
    torch.testing.assert_close(expected_gradient(kl.K3(), POLICY), FORWARD)
    assert not torch.allclose(FORWARD, REVERSE, rtol=0.1)
