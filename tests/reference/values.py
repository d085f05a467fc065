"""Value and entropy losses, one term per token."""

from __future__ import annotations

from torch import Tensor

from tests.reference.scalars import Mask, Rows, clamp, larger, per_token


def _error(difference: Tensor, huber_delta: float | None) -> Tensor:
    """d^2; with a Huber bound, 2 delta (|d| - delta / 2) beyond it."""
    if huber_delta is None or difference.abs() < huber_delta:
        return difference**2
    return 2 * huber_delta * (difference.abs() - huber_delta / 2)


def value_loss(
    predictions: Rows,
    old_values: Rows,
    returns: Rows,
    mask: Mask,
    *,
    clip: float | None = None,
    half: bool = True,
    huber_delta: float | None = None,
) -> Rows:
    """max((V - R)^2, (V_old + clip(V - V_old, +-clip) - R)^2), halved or not (arXiv 1707.06347)."""

    def term(i: int, t: int) -> Tensor:
        value, old, target = predictions[i][t], old_values[i][t], returns[i][t]
        loss = _error(value - target, huber_delta)
        if clip is not None:
            loss = larger(loss, _error(old + clamp(value - old, -clip, clip) - target, huber_delta))
        return loss / 2 if half else loss

    return per_token(mask, term)


def entropy_bonus(entropies: Rows, mask: Mask) -> Rows:
    """The entropy of every token, in nats."""
    return per_token(mask, lambda i, t: entropies[i][t])
