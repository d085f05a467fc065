"""The optimal token baseline: one baseline per group and position, weighted by accumulated gradient energy."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.returns import ends
from rollout_contract.kernels.scan import forward_scan
from rollout_contract.kernels.segments import segment_sum


def gradient_energy(
    old_log_probs: Float[Tensor, "tokens"],
    sum_pi_squared: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    importance: Float[Tensor, "tokens"] | None = None,
) -> Float[Tensor, "tokens"]:
    """Squared norm of the logit gradient, ``1 - 2 p + sum of p^2``, summed over the trainable tokens so far.

    ``importance`` weights enter squared, since they multiply the gradient.
    """
    energy = 1.0 - 2.0 * old_log_probs.exp() + sum_pi_squared
    if importance is not None:
        energy = energy * importance.square()
    goes_on = ~ends(sample_ids.flip(0)).flip(0)
    return forward_scan(energy.where(loss_mask, 0.0), goes_on.to(energy.dtype))


def trainable_positions(
    loss_mask: Bool[Tensor, "tokens"], sample_ids: Int[Tensor, "tokens"], num_samples: int
) -> Int[Tensor, "tokens"]:
    """How many trainable tokens of the response lie before each token."""
    before = loss_mask.long().cumsum(0) - loss_mask.long()
    start = before.new_full((num_samples,), 0).scatter_reduce(0, sample_ids, before, reduce="amin", include_self=False)
    return before - start[sample_ids]


def weighted_baseline(
    returns: Float[Tensor, "tokens"],
    energy: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    cells: Int[Tensor, "tokens"],
    num_cells: int,
    eps: float,
) -> Float[Tensor, "tokens"]:
    """Mean of the returns of each cell's trainable tokens, weighted by their energy."""
    energy = energy.where(loss_mask, 0.0)
    weighed = segment_sum(energy * returns.where(loss_mask, 0.0), cells, num_cells)
    total = segment_sum(energy, cells, num_cells)
    divisor = (total + eps).where(total + eps > 0, 1.0)
    return (weighed / divisor)[cells]
