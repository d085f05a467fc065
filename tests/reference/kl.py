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


def kl(
    log_probs: Rows,
    ref_log_probs: Rows,
    mask: Mask,
    *,
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    straight_through: bool = False,
    importance: Rows | None = None,
    detach_weight_where_clamped: bool = False,
) -> Rows:
    """w k(clamp(x)), clamped; the KL of every token.

    Args:
        straight_through: the value as it is, the gradient of k2 of the unclamped x.
        importance: the policy that the live weight w = exp(l - importance) divides by; w = 1 when absent.
        detach_weight_where_clamped: the weight is constant where the input clamp bites.
    """

    def term(i: int, t: int) -> Tensor:
        x = log_probs[i][t] - ref_log_probs[i][t]
        value = estimate(clamp_log(x, input_clamp), estimator)
        if importance is not None:
            weight = (log_probs[i][t] - importance[i][t]).exp()
            bites = detach_weight_where_clamped and input_clamp is not None and bool(x.abs() > input_clamp)
            value = (weight.detach() if bites else weight) * value
        value = clamp_log(value, output_clamp)
        if straight_through:
            gradient_of = x**2 / 2
            return gradient_of - gradient_of.detach() + value.detach()
        return value

    return per_token(mask, term)


def low_var_kl(log_probs: Rows, ref_log_probs: Rows, mask: Mask, importance: Rows | None = None) -> Rows:
    """k3 with its input clamped to +-20 and its output to +-10."""
    clamps = {"input_clamp": 20.0, "output_clamp": 10.0}
    return kl(log_probs, ref_log_probs, mask, estimator="k3", importance=importance, **clamps)


def adaptive_coefficient(coef: float, observed: float, target: float, samples: int, horizon: int) -> float:
    """coef (1 + clip(observed / target - 1, +-0.2) samples / horizon) (arXiv 1909.08593)."""
    error = float(clamp(scalar(observed / target - 1), -0.2, 0.2))
    return coef * (1 + error * samples / horizon)
