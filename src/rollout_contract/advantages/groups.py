"""The rewards of a batch and the statistics of its groups, as the group estimators read them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.advantages.estimator import fixed
from rollout_contract.kernels import groups
from rollout_contract.kernels.moments import Moments
from rollout_contract.kernels.segments import segment_count
from rollout_contract.losses.inputs import read, require
from rollout_contract.metrics import Metrics
from rollout_contract.roles import FixedTensor
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import RewardBatch


class Grouped(NamedTuple):
    """Rewards with the statistics of each sample's own group; every tensor is [batch]. NaN means unscorable."""

    rewards: Tensor
    group: Moments
    group_index: Tensor
    num_groups: int


def grouped(batch: RewardBatch, bessel: bool = True) -> Grouped:
    """The rewards of a batch, and their groups. Without group ids every sample is a group of its own."""
    return grouped_values(batch, read(batch, "rewards"), bessel)


def grouped_values(batch: RolloutBatch, rewards: Tensor, bessel: bool = True) -> Grouped:
    """The same for any numbers [batch]."""
    layout = batch.layout
    index = layout.group_index(rewards.device)
    return Grouped(rewards, groups.group_moments(rewards, index, layout.num_groups, bessel), index, layout.num_groups)


def trained_counts(batch: RolloutBatch, like: Tensor) -> Tensor:
    """[batch]: the number of trained tokens of each sample."""
    ids = batch.layout.sample_ids(batch.device)
    return segment_count(batch.loss_mask, ids, len(batch)).to(like.dtype)


def zero_variance(batch: RewardBatch) -> FixedTensor:
    """[batch] bool: True where all scored rewards of the sample's group are equal, so that it teaches nothing.

    Found by largest minus smallest reward: the standard deviation of equal float32 rewards is not 0. A group of one,
    and a group without any scored sample, has no variance.
    """
    require(batch, RewardBatch, "zero_variance")
    with torch.no_grad():
        index = batch.layout.group_index(batch.device)
        return fixed(groups.zero_variance(read(batch, "rewards"), index, batch.layout.num_groups))


def reward_metrics(batch: RewardBatch) -> Metrics:
    """Mergeable metrics of the rewards: mean, spread, extremes, and which share of the samples teaches nothing.

    Names: ``reward_mean``, ``reward_std`` (population), ``reward_max``, ``reward_min`` over scored samples;
    ``unscorable_fraction`` and ``zero_variance_fraction`` over all samples.
    """
    flat = zero_variance(batch)
    rewards = read(batch, "rewards")
    scored = ~rewards.isnan()
    everyone = torch.ones_like(scored)
    return Metrics(
        {
            "reward_mean": metrics.mean(rewards, scored),
            "reward_std": metrics.std(rewards, scored),
            "reward_max": metrics.maximum(rewards, scored),
            "reward_min": metrics.minimum(rewards, scored),
            "unscorable_fraction": metrics.fraction(~scored, everyone),
            "zero_variance_fraction": metrics.fraction(flat, everyone),
        }
    )
