"""How far the trainer's scores are from the rollout engine's, per token; every estimate is unclamped.

``log_ratio`` is ``old_log_probs - rollout_log_probs`` in nats, and the tokens were sampled by the rollout engine.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract.kernels.kl import k3


def chi_squared(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^2x - 1, an estimate of chi^2(trainer || rollout): the variance of the importance ratio."""
    return (2 * log_ratio).expm1()


def probability_error(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^|x|, the factor between the two probabilities; 1 for a perfect match."""
    return log_ratio.abs().exp()


def jensen_shannon(
    old_log_probs: Float[Tensor, "tokens"], rollout_log_probs: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """An estimate of the Jensen-Shannon divergence: the mean k3 of a token's two probabilities to their mixture."""
    mixture = torch.logaddexp(old_log_probs, rollout_log_probs) - math.log(2.0)
    return (k3(mixture - old_log_probs) + k3(mixture - rollout_log_probs)) / 2
