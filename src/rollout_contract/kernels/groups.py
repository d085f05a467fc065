"""Rewards compared within their group: the baselines and scales of GRPO, RLOO, OPO, Pass@k and their relatives.

A NaN reward means that the sample could not be scored: it enters no statistic, and its result here is 0.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.moments import Moments, segment_moments
from rollout_contract.kernels.segments import segment_max, segment_min, segment_sum


def group_moments(
    rewards: Float[Tensor, "batch"], group_index: Int[Tensor, "batch"], num_groups: int, bessel: bool = True
) -> Moments:
    """Statistics of each sample's group; every attribute is [batch]."""
    return segment_moments(rewards, ~rewards.isnan(), group_index, num_groups, bessel).gather(group_index)


def above_mean(rewards: Float[Tensor, "batch"], group: Moments) -> Float[Tensor, "batch"]:
    """Reward minus the mean of the group; exactly 0 when all rewards of the group are equal."""
    return group.center(rewards).where(~rewards.isnan(), 0.0)


def above_others(rewards: Float[Tensor, "batch"], group: Moments) -> Float[Tensor, "batch"]:
    """Reward minus the mean of the group's other members; 0 for a sample without others."""
    return above_mean(rewards, group) * group.number / (group.number - 1).clamp(min=1)


def above_weighted_mean(
    rewards: Float[Tensor, "batch"],
    weights: Float[Tensor, "batch"],
    group: Moments,
    group_index: Int[Tensor, "batch"],
    num_groups: int,
) -> Float[Tensor, "batch"]:
    """Reward minus the weighted mean of the group; 0 in a group without any weight."""
    scored = ~rewards.isnan()
    shifted = (rewards - group.shift).where(scored, 0.0)
    weights = weights.where(scored, 0.0)
    weighed = segment_sum(weights * shifted, group_index, num_groups)
    total = segment_sum(weights, group_index, num_groups)
    mean = weighed / total.where(total > 0, 1.0)
    return (shifted - mean[group_index]).where(scored & (total > 0)[group_index], 0.0)


def keep_singletons(
    advantages: Float[Tensor, "batch"], raw: Float[Tensor, "batch"], group: Moments
) -> Float[Tensor, "batch"]:
    """``raw`` in place of the advantage where a sample is the only scored one of its group."""
    return raw.where((group.number == 1) & ~raw.isnan(), advantages)


def zero_variance(
    rewards: Float[Tensor, "batch"], group_index: Int[Tensor, "batch"], num_groups: int
) -> Bool[Tensor, "batch"]:
    """True where largest and smallest reward of the sample's group are the same, or none could be scored."""
    scored = ~rewards.isnan()
    largest = segment_max(rewards.where(scored, float("-inf")), group_index, num_groups)
    smallest = segment_min(rewards.where(scored, float("inf")), group_index, num_groups)
    return (largest <= smallest)[group_index]


class Leader(NamedTuple):
    """Who leads a group.

    Attributes:
        alone: True for the one entry that is larger than every other of its group.
        margin: how far it is above the second; 0 for all others, for a tie, and for a group of one.
        second: the second largest of the group; -inf in a group without a second one.
    """

    alone: Bool[Tensor, "batch"]
    margin: Float[Tensor, "batch"]
    second: Float[Tensor, "batch"]


def leader(
    values: Float[Tensor, "batch"],
    counted: Bool[Tensor, "batch"],
    group_index: Int[Tensor, "batch"],
    num_groups: int,
) -> Leader:
    """The single largest ``counted`` value of each group."""
    lowest = float("-inf")
    kept = values.where(counted, lowest)
    top = counted & (kept == segment_max(kept, group_index, num_groups)[group_index])
    tied = segment_sum(top.to(values.dtype), group_index, num_groups)[group_index] > 1
    below = segment_max(kept.where(~top, lowest), group_index, num_groups)[group_index]
    second = kept.where(top & tied, below)
    alone = top & ~tied & (below > lowest)
    margin = kept.where(alone, 0.0) - below.where(alone, 0.0)
    return Leader(alone, margin, second)
