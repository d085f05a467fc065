"""Importance sampling between the policy that made the rollouts and the one that the trainer scored them with.

``log_ratio`` is ``old_log_probs - rollout_log_probs`` everywhere, in nats. Nothing here is differentiated: the inputs
are fixed fields of a batch.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sequence_any(
    hits: Bool[Tensor, "tokens"], loss_mask: Bool[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_samples: int
) -> Bool[Tensor, "batch"]:
    """Whether any masked-in entry of a sample is True."""
    return ids.new_zeros(num_samples).index_add(0, ids, (hits & loss_mask).to(ids.dtype)) > 0


def truncated(ratio: Float[Tensor, "*shape"], low: float | None, high: float | None) -> Float[Tensor, "*shape"]:
    """The ratio clamped to ``[low, high]``; an absent bound does not bind."""
    return ratio if low is None and high is None else ratio.clamp(low, high)


def below(values: Float[Tensor, "*shape"], low: float | None) -> Bool[Tensor, "*shape"]:
    """Where ``values`` are strictly below the bound."""
    return torch.zeros_like(values, dtype=torch.bool) if low is None else values < low


def above(values: Float[Tensor, "*shape"], high: float | None) -> Bool[Tensor, "*shape"]:
    """Where ``values`` are strictly above the bound."""
    return torch.zeros_like(values, dtype=torch.bool) if high is None else values > high


def zeroed_outside(ratio: Float[Tensor, "*shape"], low: float | None, high: float | None) -> Float[Tensor, "*shape"]:
    """The ratio inside ``[low, high]``, 0 outside it (IcePop)."""
    return ratio.masked_fill(below(ratio, low) | above(ratio, high), 0.0)


def second_moment_mask(
    log_ratio: Float[Tensor, "tokens"], loss_mask: Bool[Tensor, "tokens"], threshold: float
) -> Bool[Tensor, "tokens"]:
    """M2PO: drop the largest squared log-ratios until the mean of the kept ones is below ``threshold``.

    At least one token stays. Tokens with equal squares stay or go together, so the order of the tokens does not matter.
    """
    squares = log_ratio.square().where(loss_mask, float("inf"))
    ascending = squares.sort().values
    counts = torch.arange(1, ascending.numel() + 1, device=ascending.device)
    means = ascending.cumsum(0) / counts.to(ascending)
    # Running means of an ascending list never fall, so the acceptable prefixes are the first ones.
    kept = ((means < threshold) & _ends_of_ties(ascending)).to(counts.dtype) * counts
    cutoff = ascending.gather(0, (kept.amax(0, keepdim=True) - 1).clamp(min=0)) if ascending.numel() else ascending
    return loss_mask & (squares <= cutoff)


def _ends_of_ties(ascending: Float[Tensor, "tokens"]) -> Bool[Tensor, "tokens"]:
    """True at the last of equal neighbours."""
    return torch.cat([ascending, ascending.new_full((1,), float("inf"))]).diff() > 0


def interpolated_log_probs(
    rollout_log_probs: Float[Tensor, "tokens"],
    log_probs: Float[Tensor, "tokens"],
    share: Float[Tensor, "tokens"],
    in_probability: bool,
) -> Float[Tensor, "tokens"]:
    """A blend of log-probs, or (``in_probability``) of probabilities; ``share`` 0 gives the rollout policy."""
    if not in_probability:
        return rollout_log_probs + share * (log_probs - rollout_log_probs)
    # logaddexp(log(1 - s) + a, log(s) + b) = log((1 - s) e^a + s e^b); log(0) = -inf drops a policy without NaN.
    return torch.logaddexp((-share).log1p() + rollout_log_probs, share.log() + log_probs)
