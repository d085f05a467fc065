"""Objectives that drop, keep or penalise selected tokens, and the selections. Rows of per-token losses or bools."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from tests.reference.ratio_objectives import clipped, mean_log_ratio
from tests.reference.scalars import Mask, Rows, clamp_log, mean, per_token, scalar

Position = tuple[int, int]


def _valid(mask: Mask) -> list[Position]:
    return [(i, t) for i, row in enumerate(mask) for t, keep in enumerate(row) if keep]


def covariances(log_probs: Rows, advantages: Rows, mask: Mask) -> dict[Position, float]:
    """(A - mean A)(l - mean l) of every valid token, the means over the batch (arXiv 2505.22617)."""
    valid = _valid(mask)
    centre_a = mean([advantages[i][t] for i, t in valid])
    centre_l = mean([log_probs[i][t].detach() for i, t in valid])
    return {(i, t): float((advantages[i][t] - centre_a) * (log_probs[i][t].detach() - centre_l)) for i, t in valid}


def clip_cov_candidates(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    cov_low: float,
    cov_high: float,
) -> set[Position]:
    """The tokens that Clip-Cov draws from: covariance inside the bounds, and the surrogate not clipped."""
    found = set()
    for (i, t), covariance in covariances(log_probs, advantages, mask).items():
        ratio, advantage = (log_probs[i][t] - old_log_probs[i][t]).detach().exp(), advantages[i][t]
        is_clipped = -min(max(ratio, 1 - clip_low), 1 + clip_high) * advantage > -ratio * advantage
        if cov_low < covariance < cov_high and not is_clipped:
            found.add((i, t))
    return found


def clip_cov_number(mask: Mask, fraction: float) -> int:
    """How many tokens Clip-Cov draws at most."""
    return max(int(fraction * len(_valid(mask))), 1)


def clip_cov(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    dropped: Collection[Position],
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float | None = None,
) -> Rows:
    """The clipped surrogate, with no loss at the dropped tokens (arXiv 2505.22617)."""

    def term(i: int, t: int) -> Tensor:
        if (i, t) in dropped:
            return scalar(0.0)
        ratio = clamp_log(log_probs[i][t] - old_log_probs[i][t], log_ratio_clamp).exp()
        return clipped(ratio, advantages[i][t], clip_low, clip_high)

    return per_token(mask, term)


def kl_cov(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    fraction: float,
    coef: float,
    log_ratio_clamp: float | None = None,
) -> Rows:
    """-r A, plus coef |l - o| on the fraction (at least one) of tokens with the largest covariance (2505.22617)."""
    covariance = covariances(log_probs, advantages, mask)
    number = max(1, int(fraction * len(covariance)))
    selected = sorted(covariance, key=lambda position: -covariance[position])[:number]

    def term(i: int, t: int) -> Tensor:
        log_ratio = log_probs[i][t] - old_log_probs[i][t]
        penalty = coef * log_ratio.abs() if (i, t) in selected else 0.0
        return -clamp_log(log_ratio, log_ratio_clamp).exp() * advantages[i][t] + penalty

    return per_token(mask, term)


def _masked_ratio(
    keep: bool, log_prob: Tensor, behaviour: Tensor, advantage: Tensor, drift: float, log_ratio_clamp: float | None
) -> Tensor:
    """-keep r A + drift (l - b)^2; the drift also where the token is dropped."""
    log_ratio = log_prob - behaviour
    surrogate = -clamp_log(log_ratio, log_ratio_clamp).exp() * advantage if keep else scalar(0.0)
    return surrogate + (drift * log_ratio**2 if drift else 0.0)


def dppo_tv(
    log_probs: Rows,
    behaviour: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    delta_low: float,
    delta_high: float,
    zero_advantage: str = "keep",
    drift: float = 0.0,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """-r A unless A > 0 and p - q > high, or A < 0 and q - p > low (arXiv 2602.04879).

    ``zero_advantage="low"`` treats A = 0 as A < 0, which matters for nothing but a metric.
    """

    def term(i: int, t: int) -> Tensor:
        new, old, advantage = log_probs[i][t], behaviour[i][t], advantages[i][t]
        difference = (new.exp() - old.exp()).detach()
        falling = advantage < 0 or (advantage == 0 and zero_advantage == "low")
        drop = (advantage > 0 and difference > delta_high) or (falling and -difference > delta_low)
        return _masked_ratio(not drop, new, old, advantage, drift, log_ratio_clamp)

    return per_token(mask, term)


def dppo_kl(
    log_probs: Rows,
    behaviour: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    delta_low: float,
    delta_high: float,
    eps: float = 1e-8,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """As :func:`dppo_tv`, with the KL of the two-outcome distributions (q, 1 - q) and (p, 1 - p) (arXiv 2602.04879)."""

    def term(i: int, t: int) -> Tensor:
        new, old, advantage = log_probs[i][t], behaviour[i][t], advantages[i][t]
        p, q = new.exp().detach(), old.exp()
        kl = q * (old - new.detach()) + (1 - q) * ((1 - q + eps) / (1 - p + eps)).log()
        drop = (advantage > 0 and p > q and kl > delta_high) or (advantage < 0 and p < q and kl > delta_low)
        return _masked_ratio(not drop, new, old, advantage, 0.0, log_ratio_clamp)

    return per_token(mask, term)


def ipo_mask(
    log_probs: Rows,
    behaviour: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    delta: float,
    drift: float = 0.0,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """-r A where |p - q| <= delta, plus the drift (prime-rl's ipo)."""

    def term(i: int, t: int) -> Tensor:
        new, old = log_probs[i][t], behaviour[i][t]
        keep = bool((new.exp() - old.exp()).abs() <= delta)
        return _masked_ratio(keep, new, old, advantages[i][t], drift, log_ratio_clamp)

    return per_token(mask, term)


def top_entropy_mask(entropies: Rows, mask: Mask, *, quantile: float) -> list[list[bool]]:
    """The valid tokens whose entropy is at least the quantile of all valid tokens' entropies (arXiv 2506.01939)."""
    values = sorted(float(entropies[i][t]) for i, t in _valid(mask))
    if not values:
        return [[False] * len(row) for row in mask]
    place = quantile * (len(values) - 1)
    below, share = int(place), place - int(place)
    threshold = values[below] + share * (values[min(below + 1, len(values) - 1)] - values[below])
    return [[keep and bool(entropies[i][t] >= threshold) for t, keep in enumerate(row)] for i, row in enumerate(mask)]


def opsm_mask(log_probs: Rows, anchor: Rows, advantages: Rows, mask: Mask, *, delta: float) -> list[list[bool]]:
    """Drop a token iff A < 0 and the sequence's mean of (anchor - l) exceeds delta (DeepSeek-V3.2, 2512.02556)."""
    return [
        [
            keep and not bool(advantages[i][t] < 0 and -mean_log_ratio(log_probs[i], anchor[i], mask[i]) > delta)
            for t, keep in enumerate(row)
        ]
        for i, row in enumerate(mask)
    ]
