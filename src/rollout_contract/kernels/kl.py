"""Estimators of KL(policy || reference) from the log-ratio of one sampled token (joschu.net/blog/kl-approx).

``log_ratio`` is ``log_probs - ref_log_probs``, in nats; the token was sampled from the policy.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract.kernels.ratio import bounded


def k1(log_ratio: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The log-ratio itself: unbiased, of high variance, negative about half of the time."""
    return log_ratio


def k2(log_ratio: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """Half the squared log-ratio: biased as a value, but its gradient is the score-function gradient of the KL."""
    return log_ratio.square() / 2


def k3(log_ratio: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """exp(-x) - 1 + x: unbiased and never negative. The input is bounded to what the dtype can exponentiate."""
    log_ratio = bounded(log_ratio, None)
    return torch.expm1(-log_ratio) + log_ratio


def absolute(log_ratio: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The size of the log-ratio: a distance, not an estimate of the KL."""
    return log_ratio.abs()


def clamped(values: Float[Tensor, "tokens"], bound: float | None) -> Float[Tensor, "tokens"]:
    """``values`` within [-bound, bound]; no gradient flows where the clamp bites."""
    return values if bound is None else values.clamp(-bound, bound)


def exceeds(values: Float[Tensor, "tokens"], bound: float | None) -> Bool[Tensor, "tokens"]:
    """Where :func:`clamped` bites."""
    return torch.zeros_like(values, dtype=torch.bool) if bound is None else values.abs() > bound


def constant_where(values: Float[Tensor, "tokens"], condition: Bool[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The same values, without a gradient where ``condition`` is True."""
    return torch.where(condition, values.detach(), values)


def straight_through(value: Float[Tensor, "tokens"], gradient_of: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The value of ``value`` with the gradient of ``gradient_of``."""
    return gradient_of - gradient_of.detach() + value.detach()
