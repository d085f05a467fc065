"""The optimal value of a prompt under a KL penalty, from rewards of samples of the reference policy."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract.kernels.segments import segment_max, segment_sum


def optimal_value(
    rewards: Float[Tensor, "batch"], group_index: Int[Tensor, "batch"], num_groups: int, beta: float
) -> Float[Tensor, "groups"]:
    """V* = beta log(mean over the group of exp(R / beta)); 0 for a group without samples.

    A small ``beta`` gives the best reward of the group, a large one the mean. A*-PO, arXiv:2505.20686.
    """
    best = segment_max(rewards, group_index, num_groups)
    excess = ((rewards - best[group_index]) / beta).exp()
    count = segment_sum(rewards.new_ones(rewards.shape), group_index, num_groups).clamp(min=1.0)
    mean = segment_sum(excess, group_index, num_groups) / count
    return best + beta * mean.where(mean > 0, 1.0).log()
