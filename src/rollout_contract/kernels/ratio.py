"""Importance ratios of tokens and of whole samples, never infinite.

The difference of two log-probs is bounded *before* the exponential, so that neither a loss nor its gradient can
overflow. Where the bound bites, the gradient is zero: a clamp has none outside its range.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.segments import segment_mean, segment_sum


def largest_log_ratio(dtype: torch.dtype) -> float:
    """The largest log-ratio that a loss can exponentiate in ``dtype``: 68 nats for float32, 689 for float64.

    Its exponential leaves a factor of e^20 for what multiplies it, an advantage and the sum over a batch.
    """
    return math.floor(math.log(torch.finfo(dtype).max)) - 20.0


def bounded(log_ratio: Float[Tensor, "n"], bound: float | None = 20.0) -> Float[Tensor, "n"]:
    """A log-ratio clamped to +-``bound``; None: to what the dtype can exponentiate."""
    limit = log_ratio_limit(log_ratio.dtype, bound)
    return log_ratio.clamp(-limit, limit)


def log_ratio_limit(dtype: torch.dtype, bound: float | None) -> float:
    """What :func:`bounded` clamps to: ``bound``, unless the dtype can exponentiate less."""
    largest = largest_log_ratio(dtype)
    return largest if bound is None else min(bound, largest)


def sequence_mean_log_ratio(
    log_ratio: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
) -> Float[Tensor, "tokens"]:
    """Each sample's mean log-ratio over its trained tokens, at every token; 0 for a sample without any."""
    return segment_mean(log_ratio, loss_mask, sample_ids, num_samples)[sample_ids]


def sequence_sum_log_ratio(
    log_ratio: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
) -> Float[Tensor, "tokens"]:
    """Each sample's summed log-ratio over its trained tokens, at every token: the log of the product of ratios."""
    return segment_sum(log_ratio.where(loss_mask, 0.0), sample_ids, num_samples)[sample_ids]


def straight_through_log_ratio(
    log_probs: Float[Tensor, "tokens"], log_ratio: Float[Tensor, "tokens"] | Float[Tensor, ""]
) -> Float[Tensor, "tokens"]:
    """The value of ``log_ratio`` with the gradient of ``log_probs``: l - sg(l) + sg(log_ratio)."""
    return log_probs - log_probs.detach() + log_ratio.detach()
