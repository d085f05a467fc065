"""How far the trainer's scores are from the rollout engine's, per token; every estimate is unclamped.

``log_ratio`` is ``old_log_probs - rollout_log_probs`` in nats, and the tokens were sampled by the rollout engine.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def k1(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """-x, an unbiased estimate of KL(rollout || trainer) with high variance; joschu.net/blog/kl-approx."""
    return -log_ratio


def k2(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x^2 / 2, a biased estimate of KL(rollout || trainer) with low variance."""
    return log_ratio.square() / 2


def k3(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^x - 1 - x, an unbiased estimate of KL(rollout || trainer) that is never negative."""
    return log_ratio.expm1() - log_ratio


def reverse_k3(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^-x - 1 + x: what k3 is when the trainer's policy is taken for the sampler."""
    return k3(-log_ratio)


def chi_squared(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^2x - 1, an estimate of chi^2(trainer || rollout): the variance of the importance ratio."""
    return (2 * log_ratio).expm1()


def probability_error(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^|x|, the factor between the two probabilities; 1 for a perfect match."""
    return log_ratio.abs().exp()


def jensen_shannon(
    old_log_probs: Float[Tensor, "*shape"], rollout_log_probs: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """An estimate of the Jensen-Shannon divergence: the mean k3 of a token's two probabilities to their mixture."""
    mixture = torch.logaddexp(old_log_probs, rollout_log_probs) - math.log(2.0)
    return (k3(old_log_probs - mixture) + k3(rollout_log_probs - mixture)) / 2
