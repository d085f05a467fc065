"""Policy-gradient terms that weigh a whole sample at once; every result is given at each token of its sample."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.choice import choose
from rollout_contract.kernels.segments import segment_mean, segment_sum


class GammaShape(NamedTuple):
    """phi(w) = w^power exp(decay (1 - w)): 1 at w = 1, small for a weight far below or above."""

    power: float
    decay: float


def sequence_advantages(
    advantages: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
) -> Float[Tensor, "tokens"]:
    """Each sample's mean advantage over its trained tokens, at every token."""
    return segment_mean(advantages, loss_mask, sample_ids, num_samples)[sample_ids]


def geometric_mean_log_ratio(
    log_ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "tokens"]:
    """The mean of each sample's log-ratios, each clipped in log space on the side that its advantage rewards.

    A > 0: log_ratio at most clip_high. A < 0: log_ratio at least -clip_low. A = 0: either, its loss is zero.
    """
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    return segment_mean(clipped, loss_mask, sample_ids, num_samples)[sample_ids]


def gamma_weights(
    log_weight: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    positive: GammaShape,
    negative: GammaShape,
) -> Float[Tensor, "tokens"]:
    """w^k exp(lambda (1 - w)) with (k, lambda) chosen by the sign of the advantage; A = 0 counts as positive."""
    gains = advantages >= 0
    power = choose(gains, positive.power, negative.power, log_weight)
    decay = choose(gains, positive.decay, negative.decay, log_weight)
    return (decay + power * log_weight - decay * log_weight.exp()).exp()


def summed_log_weight(
    log_ratio: Float[Tensor, "tokens"],
    correction: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
    floor: float,
    ceiling: float,
) -> Float[Tensor, "tokens"]:
    """log of each sample's product of ratios and correction weights, within [log floor, ceiling] nats."""
    log_correction = correction.clamp(min=floor).log().clamp(max=ceiling)
    total = segment_sum((log_ratio + log_correction).where(loss_mask, 0.0), sample_ids, num_samples)
    return total.clamp(math.log(floor), ceiling)[sample_ids]


def geometric_mean_weights(
    weights: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
    floor: float = 1e-10,
) -> Float[Tensor, "tokens"]:
    """The geometric mean of each sample's weights over its trained tokens; ``floor`` keeps a zero weight finite."""
    return segment_mean((weights + floor).log(), loss_mask, sample_ids, num_samples).exp()[sample_ids]


def tapered_weights(
    sequence_log_ratio: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """1 for a positive return, min(pi / mu, 1) for a negative one; ``returns`` carries each sample's sign."""
    return torch.where(returns < 0, sequence_log_ratio.clamp(max=0.0), 0.0).exp()
