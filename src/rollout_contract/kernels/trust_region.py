"""How far the probability of a token moved away from the policy that sampled it, and whether that is too far."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def probability_shift(
    log_probs: Float[Tensor, "tokens"], anchor_log_probs: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """pi - mu: signed; its absolute value is the total variation of "this token or another". No gradient."""
    return log_probs.detach().exp() - anchor_log_probs.exp()


def binary_kl(
    log_probs: Float[Tensor, "tokens"], anchor_log_probs: Float[Tensor, "tokens"], eps: float = 1e-8
) -> Float[Tensor, "tokens"]:
    """KL(mu || pi) of "this token or another", in nats; ``eps`` keeps a probability of one finite. No gradient."""
    log_probs = log_probs.detach()
    anchor, current = anchor_log_probs.exp(), log_probs.exp()
    # A log-prob that rounding left slightly above zero must not make the rest negative.
    rest_anchor, rest_current = (1.0 - anchor).clamp(min=0.0), (1.0 - current).clamp(min=0.0)
    return anchor * (anchor_log_probs - log_probs) + rest_anchor * ((rest_anchor + eps) / (rest_current + eps)).log()


def leaves_region(
    shift: Float[Tensor, "tokens"],
    divergence: Float[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    delta_low: float,
    delta_high: float,
) -> tuple[Bool[Tensor, "tokens"], Bool[Tensor, "tokens"]]:
    """(too low, too high): tokens that left the trust region on the side to which their advantage pushes them.

    Too high: A > 0, likelier than before, and further than ``delta_high``. Too low: A < 0, less likely, ``delta_low``.
    """
    low = (advantages < 0) & (shift < 0) & (divergence > delta_low)
    return low, (advantages > 0) & (shift > 0) & (divergence > delta_high)
