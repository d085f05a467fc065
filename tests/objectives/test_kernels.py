"""The kernels of the policy objectives: choices of tokens, optimal values, and compilation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.kernels import covariance, policy, ratio, sequence_policy, trust_region
from rollout_contract.kernels.choice import choose
from rollout_contract.kernels.optimal_value import optimal_value

TOKENS, SAMPLES = 12, 3


def inputs(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    log_probs = -torch.rand(TOKENS, dtype=torch.float64) - 0.1
    return {
        "log_probs": log_probs,
        "old": (log_probs + 0.4 * torch.randn(TOKENS, dtype=torch.float64)).clamp(max=0.0),
        "advantages": torch.randn(TOKENS, dtype=torch.float64),
        "mask": torch.rand(TOKENS) > 0.3,
        "ids": torch.tensor([0] * 5 + [1] * 4 + [2] * 3),
    }


def test_choose_keeps_float64() -> None:
    found = choose(torch.tensor([True, False]), 0.8, 0.1, torch.zeros(2, dtype=torch.float64))
    assert found.tolist() == [0.8, 0.1]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 68.0), (torch.float64, 689.0)], ids=str)
def test_the_largest_log_ratio_has_a_finite_exponential(dtype: torch.dtype, limit: float) -> None:
    assert ratio.largest_log_ratio(dtype) == limit
    found = ratio.bounded(torch.full((1,), 1e30, dtype=dtype), None).exp()
    assert found.isfinite().all()
    assert found.item() == pytest.approx(math.exp(limit), rel=1e-4)
    assert (found * math.exp(19)).isfinite().all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 1.0])
def test_top_fraction_is_what_torch_quantile_says(seed: int, fraction: float) -> None:
    x = inputs(seed)
    scores, mask = x["advantages"], x["mask"]
    expected = mask & (scores >= scores[mask].quantile(1 - fraction))
    assert torch.equal(covariance.top_fraction(scores, mask, fraction), expected)


def test_top_fraction_of_nothing_is_nothing() -> None:
    empty, none = torch.zeros(0), torch.zeros(3, dtype=torch.bool)
    assert covariance.top_fraction(empty, none[:0], 0.2).tolist() == []
    assert not covariance.top_fraction(torch.ones(3), none, 0.2).any()


def test_top_fraction_of_equal_scores_keeps_all() -> None:
    assert covariance.top_fraction(torch.full((4,), 0.3), torch.ones(4, dtype=torch.bool), 0.25).all()


@pytest.mark.parametrize(("fraction", "count"), [(0.2, 3), (0.17, 2), (1e-4, 1), (1.0, 17)])
def test_fraction_count_rounds_down_and_is_at_least_one(fraction: float, count: int) -> None:
    assert int(covariance.fraction_count(torch.ones(17, dtype=torch.bool), fraction)) == count


def test_largest_takes_eligible_tokens_alone_and_the_earlier_of_equals() -> None:
    scores, eligible = torch.tensor([1.0, 5.0, 1.0, 1.0]), torch.tensor([True, False, True, True])
    assert covariance.largest(scores, eligible, torch.tensor(2)).tolist() == [True, False, True, False]
    assert covariance.largest(scores, eligible, torch.tensor(9)).tolist() == eligible.tolist()


def test_binary_kl_is_zero_at_home_and_finite_at_certainty() -> None:
    log_probs = torch.tensor([-0.5, 0.0, -1e-9], dtype=torch.float64)
    assert trust_region.binary_kl(log_probs, log_probs).abs().max() == 0.0
    assert trust_region.binary_kl(torch.zeros(1), torch.tensor([-5.0])).isfinite().all()
    p, q = math.exp(-1.0), math.exp(-0.5)
    expected = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    found = trust_region.binary_kl(torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64))
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("beta", [0.01, 1.0, 1e4])
def test_optimal_value_is_the_log_mean_exp(beta: float) -> None:
    rewards, groups = torch.tensor([0.0, 1.0, 1.0, -2.0, -2.0], dtype=torch.float64), torch.tensor([0, 0, 0, 2, 2])
    found = optimal_value(rewards, groups, 3, beta)
    first = 1.0 + beta * math.log((math.exp(-1.0 / beta) + 2) / 3)
    torch.testing.assert_close(found, torch.tensor([first, 0.0, -2.0], dtype=torch.float64))


def losses() -> dict[str, Callable[[Tensor, dict[str, Any]], Tensor]]:
    """One compiled path through every kernel."""

    def segments(x: dict[str, Any]) -> tuple[Tensor, Tensor, int]:
        return x["mask"], x["ids"], SAMPLES

    def dppo(log_probs: Tensor, x: dict[str, Any]) -> Tensor:
        shift = trust_region.probability_shift(log_probs, x["old"])
        divergence = trust_region.binary_kl(log_probs, x["old"])
        low, high = trust_region.leaves_region(shift, divergence, x["advantages"], 0.01, 0.02)
        return (-ratio.bounded(log_probs - x["old"]).exp() * x["advantages"]).where(~(low | high), 0.0)

    def gspo(log_probs: Tensor, x: dict[str, Any]) -> Tensor:
        mean = ratio.sequence_mean_log_ratio(log_probs - x["old"], *segments(x))
        return policy.clipped_surrogate(mean.exp(), x["advantages"], 0.1, 0.2, 3.0)

    def gmpo(log_probs: Tensor, x: dict[str, Any]) -> Tensor:
        advantages = sequence_policy.sequence_advantages(x["advantages"], *segments(x))
        return -advantages * sequence_policy.geometric_mean_log_ratio(
            log_probs - x["old"], advantages, *segments(x), 0.1, 0.2
        )

    def vespo(log_probs: Tensor, x: dict[str, Any]) -> Tensor:
        log_ratio = (log_probs - x["old"]).detach()
        total = sequence_policy.summed_log_weight(log_ratio, log_ratio.exp(), *segments(x), floor=1e-8, ceiling=20.0)
        shapes = sequence_policy.GammaShape(2.0, 3.0), sequence_policy.GammaShape(3.0, 2.0)
        weights = sequence_policy.gamma_weights(total, x["advantages"], *shapes)
        return policy.score_function(log_probs, x["advantages"], weights)

    def covariances(log_probs: Tensor, x: dict[str, Any]) -> Tensor:
        scores = covariance.token_covariance(log_probs, x["advantages"], x["mask"])
        chosen = covariance.largest(scores, x["mask"], covariance.fraction_count(x["mask"], 0.3))
        return log_probs * (chosen & covariance.top_fraction(scores, x["mask"], 0.5))

    return {
        "ppo": lambda y, x: policy.clipped_surrogate(ratio.bounded(y - x["old"]).exp(), x["advantages"], 0.2, 0.28),
        "sapo": lambda y, x: policy.soft_gate(ratio.bounded(y - x["old"]).exp(), x["advantages"], 1.0, 1.05),
        "dro": lambda y, x: policy.quadratic_log_ratio(y, x["advantages"], y - x["old"], 0.1),
        "dppo": dppo,
        "gspo": gspo,
        "gmpo": gmpo,
        "vespo": vespo,
        "covariance": covariances,
    }


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.parametrize("name", losses())
def test_kernels_compile_as_one_graph(name: str) -> None:
    x = inputs()
    loss = losses()[name]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    gradients = []
    for function in (loss, compiled):
        log_probs = x["log_probs"].clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(log_probs, x).sum(), log_probs)[0])
    torch.testing.assert_close(*gradients)
