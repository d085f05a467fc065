"""What distillation does with the reverse KL of sampled tokens along a response."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.returns import Masked, discounted_sums, ends
from rollout_contract.kernels.scan import forward_scan
from rollout_contract.kernels.segments import segment_sum


def future_reverse_kl(
    rewards: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    positions: Int[Tensor, "tokens"],
    gamma: float,
    *,
    length_normalised: bool,
    masked: Masked = "skip",
    from_start: bool = False,
    masked_weight: float = 0.0,
) -> Float[Tensor, "tokens"]:
    """sum_{i >= t} gamma^(i - t) R_i of MiniLLM (arXiv:2306.08543), with R = teacher - student.

    ``length_normalised`` divides by sum_{i >= t} gamma^(i - t) m_i, where a masked token counts ``masked_weight``.
    ``from_start`` discounts by gamma^i, from the start of the response instead of from the token.
    """
    sums = discounted_sums(rewards.where(loss_mask, 0.0), loss_mask, sample_ids, gamma, masked)
    if length_normalised:
        counts = loss_mask.to(rewards.dtype).clamp(min=masked_weight)
        lengths = discounted_sums(counts, loss_mask, sample_ids, gamma, masked)
        return torch.where(lengths > 0, sums / lengths.where(lengths > 0, 1.0), 0.0)
    return sums * gamma ** positions.to(sums.dtype) if from_start else sums


def front_loaded_weights(
    sizes: Float[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    num_samples: int,
    gamma: float,
    eps: float = 1e-8,
) -> Float[Tensor, "tokens"]:
    """1 + gamma (1 - sum_{s < t} size_s / sum_s size_s): earlier tokens of a response weigh more (arXiv:2606.22600)."""
    starts = ends(sample_ids.flip(0)).flip(0)
    passed = forward_scan(sizes, (~starts).to(sizes.dtype)) - sizes
    total = segment_sum(sizes, sample_ids, num_samples)[sample_ids]
    return 1.0 + gamma * (1.0 - passed / total.clamp(min=eps))
