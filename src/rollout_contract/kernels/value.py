"""The critic's error per token, plain, clipped around the old values, or with a linear tail."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def value_error(
    value_predictions: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"], huber_delta: float | None = None
) -> Float[Tensor, "tokens"]:
    """``d^2 / 2`` with ``d = value_predictions - returns``; beyond ``huber_delta`` linear, with the same slope there."""
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


def clipped_value_error(
    value_predictions: Float[Tensor, "tokens"],
    values: Float[Tensor, "tokens"],
    returns: Float[Tensor, "tokens"],
    clip: float,
    huber_delta: float | None = None,
) -> Float[Tensor, "tokens"]:
    """The larger of the plain error and the error of the clipped prediction."""
    plain = value_error(value_predictions, returns, huber_delta)
    return torch.maximum(plain, value_error(clip_values(value_predictions, values, clip), returns, huber_delta))
