"""Policy-gradient terms per token: ratios, advantages and log-probs in, a loss per token out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract.kernels.choice import choose


class ClipHits(NamedTuple):
    """Where a clipped surrogate has no gradient, and why; ``dual`` is None if nothing caps the loss of bad tokens."""

    low: Bool[Tensor, "tokens"]
    high: Bool[Tensor, "tokens"]
    dual: Bool[Tensor, "tokens"] | None


def clip_ceilings(
    clip_high: float, dual_clip: float | None = None, ratio_cap: float | None = None
) -> tuple[float, float | None]:
    """The largest ratio that counts for A > 0, and for A < 0 (None: any)."""
    top = 1.0 + clip_high
    if ratio_cap is None:
        return top, dual_clip
    bad = max(ratio_cap, top)
    return min(top, ratio_cap), bad if dual_clip is None else min(bad, dual_clip)


def clipped_surrogate(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> Float[Tensor, "tokens"]:
    """max(-min(r, cap) A, -clip(r, 1 - clip_low, 1 + clip_high) A), and for A < 0 at most -dual_clip A.

    Written with one clamp for each sign of A, which is the same function with the same gradient: full at the bounds,
    zero outside. It is faster, since torch splits the gradient of a maximum by comparing its operands.
    """
    good, bad = clip_ceilings(clip_high, dual_clip, ratio_cap)
    gain = advantages.clamp(min=0.0) * ratio.clamp(max=good)
    return -gain - advantages.clamp(max=0.0) * ratio.clamp(1.0 - clip_low, bad)


def clip_hits(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> ClipHits:
    """Which tokens the clipped surrogate clips: below for A < 0, above for A > 0, and above by dual clip or cap."""
    good, bad = clip_ceilings(clip_high, dual_clip, ratio_cap)
    loses = advantages < 0
    dual = None if bad is None else loses & (ratio > bad)
    return ClipHits(low=loses & (ratio < 1.0 - clip_low), high=(advantages > 0) & (ratio > good), dual=dual)


def score_function(
    log_probs: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"], weights: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """-sg(w) A log_probs: the policy gradient with a fixed weight; its gradient is -w A."""
    return -weights.detach() * advantages * log_probs


def soft_gate(
    ratio: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"], tau_positive: float, tau_negative: float
) -> Float[Tensor, "tokens"]:
    """(4 / tau) sigmoid(tau (r - 1)): a smooth clip whose slope at r = 1 is 1, softer as tau falls."""
    tau = choose(advantages > 0, tau_positive, tau_negative, ratio)
    return 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))


def quadratic_log_ratio(
    log_probs: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    log_ratio: Float[Tensor, "tokens"],
    beta: float,
) -> Float[Tensor, "tokens"]:
    """-(A log_probs - beta / 2 log_ratio^2)."""
    return 0.5 * beta * log_ratio.square() - advantages * log_probs
