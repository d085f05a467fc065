"""The critic's error per token, plain, clipped around the old values, or with a linear tail."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def value_error(
    value_predictions: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"], huber_delta: float | None = None
) -> Float[Tensor, "tokens"]:
    """``d^2 / 2`` with ``d = value_predictions - returns``; linear beyond ``huber_delta``, with that slope."""
    difference = value_predictions - returns
    if huber_delta is None:
        return 0.5 * difference.square()
    near = difference.clamp(-huber_delta, huber_delta)
    return near * (difference - 0.5 * near)


def clip_values(
    value_predictions: Float[Tensor, "tokens"], values: Float[Tensor, "tokens"], clip: float
) -> Float[Tensor, "tokens"]:
    """The prediction, moved to within ``clip`` of the old value."""
    return values + (value_predictions - values).clamp(-clip, clip)
