"""The covariance of advantages and log-probs over a batch, and choices of tokens by it; no device is synchronised."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked_mean(values: Float[Tensor, "tokens"], loss_mask: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """Mean over the trained tokens of the batch; 0 for none."""
    return values.where(loss_mask, 0.0).sum() / loss_mask.sum().clamp(min=1)


def token_covariance(
    log_probs: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"], loss_mask: Bool[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """(A - mean A) (log_probs - mean log_probs), the means over the trained tokens; no gradient."""
    log_probs = log_probs.detach()
    deviation = log_probs - masked_mean(log_probs, loss_mask)
    return (advantages - masked_mean(advantages, loss_mask)) * deviation


def fraction_count(loss_mask: Bool[Tensor, "tokens"], fraction: float) -> Int[Tensor, ""]:
    """max(1, floor(fraction x number of trained tokens)), on the device."""
    return (loss_mask.sum().to(torch.float64) * fraction).floor().clamp(min=1.0).to(torch.long)


def largest(
    scores: Float[Tensor, "tokens"], eligible: Bool[Tensor, "tokens"], count: Int[Tensor, ""]
) -> Bool[Tensor, "tokens"]:
    """The ``count`` eligible tokens with the largest scores, or all if there are fewer; of equals, the earlier."""
    order = scores.masked_fill(~eligible, -torch.inf).argsort(descending=True, stable=True)
    ranks = torch.empty_like(order).scatter(0, order, torch.arange(order.numel(), device=order.device))
    return eligible & (ranks < count)


def top_fraction(
    scores: Float[Tensor, "tokens"], loss_mask: Bool[Tensor, "tokens"], fraction: float
) -> Bool[Tensor, "tokens"]:
    """The trained tokens whose score is at least the (1 - fraction) quantile of the trained tokens' scores.

    The quantile is interpolated linearly, as ``torch.quantile`` does, which however refuses more than 16M entries.
    """
    if scores.numel() == 0:
        return loss_mask
    ordered = scores.masked_fill(~loss_mask, torch.inf).sort().values
    place = (loss_mask.sum() - 1).clamp(min=0).to(torch.float64) * (1.0 - fraction)
    below, above = ordered.gather(0, torch.stack([place.floor(), place.ceil()]).to(torch.long)).unbind()
    threshold = torch.where(below == above, below, torch.lerp(below, above, (place - place.floor()).to(scores.dtype)))
    return loss_mask & (scores >= threshold)
