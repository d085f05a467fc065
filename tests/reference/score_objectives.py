"""Policy objectives of the form -(constant weight) x A x l. Each returns the loss of every token, in rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tests.reference.scalars import Mask, Row, Rows, clamp, clamp_log, kept, mean, per_token, scalar, total


def nll(log_probs: Rows, mask: Mask) -> Rows:
    """-l."""
    return per_token(mask, lambda i, t: -log_probs[i][t])


def reinforce(log_probs: Rows, advantages: Rows, mask: Mask) -> Rows:
    """-A l (Williams 1992; GPG, arXiv 2504.02546)."""
    return per_token(mask, lambda i, t: -advantages[i][t] * log_probs[i][t])


def reinforce_with_ratio(
    log_probs: Rows,
    behaviour: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    ratio_min: float | None = None,
    ratio_max: float | None = None,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """-sg(clip(r, min, max)) A l with r = exp(l - b): CISPO (arXiv 2506.13585), and REINFORCE with a clamped ratio."""

    def term(i: int, t: int) -> Tensor:
        ratio = clamp_log(log_probs[i][t] - behaviour[i][t], log_ratio_clamp).exp()
        return -clamp(ratio, ratio_min, ratio_max).detach() * advantages[i][t] * log_probs[i][t]

    return per_token(mask, term)


def rollout_is(
    log_probs: Rows,
    rollout_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """-sg(r) A l where 1 - low < r < 1 + high, else 0; r = exp(l - b)."""

    def term(i: int, t: int) -> Tensor:
        ratio = clamp_log(log_probs[i][t] - rollout_log_probs[i][t], log_ratio_clamp).exp().detach()
        inside = 1 - clip_low < ratio < 1 + clip_high
        return -ratio * advantages[i][t] * log_probs[i][t] if inside else scalar(0.0)

    return per_token(mask, term)


def vespo(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
    log_ratio_clamp: float = 20.0,
    weights: Sequence[Sequence[float]] | None = None,
) -> Rows:
    """-phi A l, phi = exp(lambda + k log w - lambda w) constant, w the ratio of the sequences (arXiv 2602.10693).

    log w = sum of the clamped log-ratios, between log 1e-8 and 20. A correction adds its own log to the sum.
    """
    lowest = math.log(1e-8)

    def log_weight(i: int) -> Tensor:
        pairs = zip(kept(log_probs[i], mask[i]), kept(old_log_probs[i], mask[i]), strict=True)
        log_ratio = total(clamp_log(new - old, log_ratio_clamp) for new, old in pairs)
        for weight, keep in zip(weights[i] if weights else [], mask[i], strict=bool(weights)):
            log_ratio = log_ratio + (clamp(scalar(weight).log(), lowest, 20.0) if keep else 0.0)
        return clamp(log_ratio, lowest, 20.0).detach()

    def term(i: int, t: int) -> Tensor:
        positive = bool(advantages[i][t] >= 0)
        k, lam = (k_positive, lambda_positive) if positive else (k_negative, lambda_negative)
        log_w = log_weight(i)
        return -(lam + k * log_w - lam * log_w.exp()).exp() * advantages[i][t] * log_probs[i][t]

    return per_token(mask, term)


def topr(log_probs: Rows, behaviour: Rows, advantages: Rows, mask: Mask) -> Rows:
    """-w A l: w = 1 for a positive return, min(pi / mu, 1) of the sequence for a negative one (arXiv 2503.14286).

    The return is the mean advantage of the sequence.
    """

    def term(i: int, t: int) -> Tensor:
        log_ratio = total(kept(log_probs[i], mask[i])) - total(kept(behaviour[i], mask[i]))
        negative = bool(mean(kept(advantages[i], mask[i])) < 0)
        weight = clamp(log_ratio, high=0.0).exp().detach() if negative else 1.0
        return -weight * advantages[i][t] * log_probs[i][t]

    return per_token(mask, term)


def dro(log_probs: Rows, old_log_probs: Rows, advantages: Rows, mask: Mask, *, beta: float) -> Rows:
    """-(A l - beta / 2 (l - o)^2) (arXiv 2405.19107)."""

    def term(i: int, t: int) -> Tensor:
        new, old = log_probs[i][t], old_log_probs[i][t]
        return -(advantages[i][t] * new - beta / 2 * (new - old) ** 2)

    return per_token(mask, term)


def positive_nll(log_probs: Rows, positive: Sequence[bool], mask: Mask, *, weight: float) -> Rows:
    """weight x -l on the sequences with a positive reward (VAPO, arXiv 2504.05118)."""
    return per_token(mask, lambda i, t: -weight * log_probs[i][t] if positive[i] else scalar(0.0))


def optimal_value(rewards: Sequence[float], *, beta: float) -> float:
    """V* = beta log mean exp(R / beta) over rewards of the reference policy (A*-PO, arXiv 2505.20686)."""
    largest = max(rewards)
    return largest + beta * math.log(math.fsum(math.exp((r - largest) / beta) for r in rewards) / len(rewards))


def a_star_po(log_probs: Rows, ref_log_probs: Rows, rewards: Row, values: Row, mask: Mask, *, beta: float) -> Rows:
    """(beta sum (l - ref) - (R - V*))^2 of the sequence, at each of its tokens (arXiv 2505.20686)."""

    def term(i: int, t: int) -> Tensor:
        log_ratio = total(kept(log_probs[i], mask[i])) - total(kept(ref_log_probs[i], mask[i]))
        return (beta * log_ratio - (rewards[i] - values[i])) ** 2

    return per_token(mask, term)
