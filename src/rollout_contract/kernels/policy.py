"""Policy-gradient terms per token: ratios, advantages and log-probs in, a loss per token out."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract.kernels.choice import choose


class ClipHits(NamedTuple):
    """Where a clipped surrogate has no gradient, and why."""

    low: Bool[Tensor, "tokens"]
    high: Bool[Tensor, "tokens"]
    dual: Bool[Tensor, "tokens"]


def clip_bounds(
    advantages: Float[Tensor, "tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"]]:
    """The interval of ratios outside which the clipped surrogate of each token is flat.

    A > 0: up to 1 + clip_high. A < 0: from 1 - clip_low up to the dual clip or the cap, if any.
    """
    top, cap = 1.0 + clip_high, math.inf if ratio_cap is None else ratio_cap
    ceiling = min(max(cap, top), math.inf if dual_clip is None else dual_clip)
    gains = advantages > 0
    lower = choose(gains, 0.0, 1.0 - clip_low, advantages)
    return lower, choose(gains, min(top, cap), ceiling, advantages)


def clipped_surrogate(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> Float[Tensor, "tokens"]:
    """max(-min(r, cap) A, -clip(r, 1 - clip_low, 1 + clip_high) A), and for A < 0 at most -dual_clip A.

    Written as -A clamp(r, lower(A), upper(A)), which is the same function with the same gradient: full at the bounds,
    zero outside them.
    """
    lower, upper = clip_bounds(advantages, clip_low, clip_high, dual_clip, ratio_cap)
    return -advantages * ratio.clamp(lower, upper)


def clip_hits(
    ratio: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> ClipHits:
    """Which tokens the clipped surrogate clips: below for A < 0, above for A > 0, and above by dual clip or cap."""
    lower, upper = clip_bounds(advantages, clip_low, clip_high, dual_clip, ratio_cap)
    above = ratio > upper
    loses = advantages < 0
    return ClipHits(low=loses & (ratio < lower), high=above & (advantages > 0), dual=above & loses)


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
