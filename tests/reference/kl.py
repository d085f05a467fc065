"""KL estimators on the sampled token; x = l - ref in nats (joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from torch import Tensor

from tests.reference.scalars import Mask, Rows, clamp, clamp_log, per_token, scalar


def estimate(x: Tensor, estimator: str) -> Tensor:
    """k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x, abs = |x|."""
    match estimator:
        case "k1":
            return x
        case "k2":
            return x**2 / 2
        case "k3":
            return (-x).exp() - 1 + x
        case "abs":
            return x.abs()
    raise ValueError(estimator)


def log_ratios(log_probs: Rows, anchor: Rows) -> Rows:
    """l - anchor at every token, the log of an importance weight."""
    return [[new - old for new, old in zip(ls, os, strict=True)] for ls, os in zip(log_probs, anchor, strict=True)]


def kl(
    log_probs: Rows,
    ref_log_probs: Rows,
    mask: Mask,
    *,
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    straight_through: bool = False,
    log_weights: Rows | None = None,
    log_weight_clamp: float | None = None,
    weight_before_clamp: bool = True,
    detach_weight_where_clamped: bool = False,
) -> Rows:
    """w k(clamp(x)), clamped; the KL of every token. low_var_kl is k3 with clamps at 20 and 10.

    Args:
        straight_through: the value as it is, the gradient of k2 of the unclamped x.
        log_weights: log of the live weight w of every token; w = 1 when absent.
        weight_before_clamp: the output clamp applies to w k, otherwise to k.
        detach_weight_where_clamped: the weight is constant where the input clamp bites.
    """

    def weight(i: int, t: int, x: Tensor) -> Tensor:
        if log_weights is None:
            return scalar(1.0)
        found = clamp_log(log_weights[i][t], log_weight_clamp).exp()
        bites = detach_weight_where_clamped and input_clamp is not None and bool(x.abs() > input_clamp)
        return found.detach() if bites else found

    def term(i: int, t: int) -> Tensor:
        x = log_probs[i][t] - ref_log_probs[i][t]
        value, w = estimate(clamp_log(x, input_clamp), estimator), weight(i, t, x)
        value = clamp_log(w * value, output_clamp) if weight_before_clamp else w * clamp_log(value, output_clamp)
        if straight_through:
            gradient_of = x**2 / 2
            return gradient_of - gradient_of.detach() + value.detach()
        return value

    return per_token(mask, term)


def adaptive_coefficient(coef: float, observed: float, target: float, samples: int, horizon: int) -> float:
    """coef (1 + clip(observed / target - 1, +-0.2) samples / horizon) (arXiv 1909.08593)."""
    error = float(clamp(scalar(observed / target - 1), -0.2, 0.2))
    return coef * (1 + error * samples / horizon)
