"""OPO: the reward minus the group's mean, weighted by length."""

from __future__ import annotations

from rollout_contract.advantages.estimator import Singleton, estimator, to_tokens
from rollout_contract.advantages.groups import grouped, trained_counts
from rollout_contract.kernels.groups import above_weighted_mean, keep_singletons
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="R - sum of n R / sum of n in the group, n = trained tokens",
    paper="arXiv:2505.23585",
    known_as={"verl": "algorithm.adv_estimator=opo"},
)
def opo(batch: RewardBatch, *, singleton: Singleton = "zero") -> FixedTensor:
    """Advantages over the length-weighted optimal baseline (arXiv:2505.23585), the same on every token of a sample.

    Args:
        batch: rewards and group ids of whole groups; NaN rewards are left out and get 0.
        singleton: a group of one gets 0, or its ``raw`` reward (verl).

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    lengths = trained_counts(batch, like=found.rewards)
    advantages = above_weighted_mean(found.rewards, lengths, found.group, found.group_index, found.num_groups)
    if singleton == "raw":
        advantages = keep_singletons(advantages, found.rewards, found.group)
    return to_tokens(batch, advantages)
