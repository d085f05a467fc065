"""Policy objectives on a clipped or gated probability ratio. Each returns the loss of every token, in rows."""

from __future__ import annotations

from torch import Tensor

from tests.reference.scalars import (
    Mask,
    Row,
    Rows,
    clamp,
    clamp_log,
    kept,
    larger,
    mean,
    per_token,
    scalar,
    smaller,
    total,
)


def clipped(
    ratio: Tensor,
    advantage: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> Tensor:
    """max(-r A, -clip(r, 1 - low, 1 + high) A); for A < 0 at most -c A; the unclipped r at most ``ratio_cap``.

    arXiv 1707.06347; separate bounds arXiv 2503.14476; dual clip arXiv 1912.09729; cap arXiv 2505.07291.
    """
    unclipped = -clamp(ratio, high=ratio_cap) * advantage
    loss = larger(unclipped, -clamp(ratio, 1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is not None and advantage < 0:
        loss = smaller(loss, -dual_clip * advantage)
    return loss


def ppo_clip(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """The clipped surrogate on r_t = exp(l_t - o_t)."""

    def term(i: int, t: int) -> Tensor:
        ratio = clamp_log(log_probs[i][t] - old_log_probs[i][t], log_ratio_clamp).exp()
        return clipped(ratio, advantages[i][t], clip_low, clip_high, dual_clip, ratio_cap)

    return per_token(mask, term)


def mean_log_ratio(log_probs: Row, old_log_probs: Row, mask: list[bool], eps: float | None = None) -> Tensor:
    """Mean of l - o over the tokens of a sequence that are masked in."""
    return mean([new - old for new, old in zip(kept(log_probs, mask), kept(old_log_probs, mask), strict=True)], eps)


def gspo(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    log_ratio_clamp: float | None = 20.0,
    count_eps: float | None = None,
    mean_advantage: bool = False,
) -> Rows:
    """The clipped surrogate on s = exp(mean (l - o)), differentiated through the mean (arXiv 2507.18071)."""

    def term(i: int, t: int) -> Tensor:
        log_ratio = mean_log_ratio(log_probs[i], old_log_probs[i], mask[i], count_eps)
        advantage = mean(kept(advantages[i], mask[i])) if mean_advantage else advantages[i][t]
        return clipped(clamp_log(log_ratio, log_ratio_clamp).exp(), advantage, clip_low, clip_high, dual_clip)

    return per_token(mask, term)


def gspo_token(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    log_ratio_max: float | None = 10.0,
    log_ratio_clamp: float | None = None,
) -> Rows:
    """The clipped surrogate on s_t = sg(s) x exp(l_t - sg l_t) (arXiv 2507.18071, section 4.3)."""

    def term(i: int, t: int) -> Tensor:
        new = log_probs[i][t]
        log_ratio = new - new.detach() + mean_log_ratio(log_probs[i], old_log_probs[i], mask[i]).detach()
        log_ratio = clamp_log(clamp(log_ratio, high=log_ratio_max), log_ratio_clamp)
        return clipped(log_ratio.exp(), advantages[i][t], clip_low, clip_high, dual_clip)

    return per_token(mask, term)


def luspo(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """GSPO times the length of the response (arXiv 2602.05261)."""
    bounds = {"clip_low": clip_low, "clip_high": clip_high, "log_ratio_clamp": log_ratio_clamp}
    losses = gspo(log_probs, old_log_probs, advantages, mask, **bounds)
    return [[sum(mask[i]) * loss for loss in row] for i, row in enumerate(losses)]


def seq_product_clip(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float | None = None,
) -> Rows:
    """The clipped surrogate on exp(sum (l - o)), the ratio of whole sequences (arXiv 2402.14740)."""

    def term(i: int, t: int) -> Tensor:
        log_ratio = total(kept(log_probs[i], mask[i])) - total(kept(old_log_probs[i], mask[i]))
        return clipped(clamp_log(log_ratio, log_ratio_clamp).exp(), advantages[i][t], clip_low, clip_high)

    return per_token(mask, term)


def geo_mean(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    clip_low: float,
    clip_high: float,
    count_eps: float | None = None,
    zero_advantage: str = "unit",
    log_ratio_clamp: float | None = None,
) -> Rows:
    """GMPO: -A_t exp(mean u), u the log-ratio clipped to [-low, high] on the pessimistic side (arXiv 2507.20673).

    A > 0 takes the smaller of the log-ratio and its clip, A < 0 the larger. At A = 0, u is 0 ("unit") or the larger.
    """

    def pessimistic(i: int, t: int) -> Tensor:
        log_ratio = log_probs[i][t] - old_log_probs[i][t]
        inside = clamp(log_ratio, -clip_low, clip_high)
        if advantages[i][t] > 0:
            return smaller(log_ratio, inside)
        if advantages[i][t] < 0 or zero_advantage == "max":
            return larger(log_ratio, inside)
        return scalar(0.0)

    def term(i: int, t: int) -> Tensor:
        logs = [pessimistic(i, s) for s, keep in enumerate(mask[i]) if keep]
        return -advantages[i][t] * clamp_log(mean(logs, count_eps), log_ratio_clamp).exp()

    return per_token(mask, term)


def sapo(
    log_probs: Rows,
    old_log_probs: Rows,
    advantages: Rows,
    mask: Mask,
    *,
    tau_positive: float,
    tau_negative: float,
    sequence_level: bool = False,
    log_ratio_clamp: float | None = 20.0,
) -> Rows:
    """-(4 / tau) sigmoid(tau (r - 1)) A, with one temperature for A > 0 and one for the rest (arXiv 2511.20347).

    ``sequence_level``: r = exp(mean (l - o)) and A the mean advantage of the sequence.
    """

    def term(i: int, t: int) -> Tensor:
        advantage, log_ratio = advantages[i][t], log_probs[i][t] - old_log_probs[i][t]
        if sequence_level:
            advantage = mean(kept(advantages[i], mask[i]))
            log_ratio = mean_log_ratio(log_probs[i], old_log_probs[i], mask[i])
        tau = tau_positive if advantage > 0 else tau_negative
        ratio = clamp_log(log_ratio, log_ratio_clamp).exp()
        return -(4 / tau) * (tau * (ratio - 1)).sigmoid() * advantage

    return per_token(mask, term)


def is_surrogate(
    log_probs: Rows, old_log_probs: Rows, advantages: Rows, mask: Mask, *, log_ratio_clamp: float | None = 20.0
) -> Rows:
    """-exp(l - o) A, without a clip."""

    def term(i: int, t: int) -> Tensor:
        return -clamp_log(log_probs[i][t] - old_log_probs[i][t], log_ratio_clamp).exp() * advantages[i][t]

    return per_token(mask, term)


def on_policy_ratio(log_probs: Rows, advantages: Rows, mask: Mask) -> Rows:
    """-exp(l - sg l) A: value -A, gradient -A."""
    return per_token(mask, lambda i, t: -(log_probs[i][t] - log_probs[i][t].detach()).exp() * advantages[i][t])
