"""MaxRL: centred rewards over their mean, so that rare successes count as in maximum likelihood."""

from __future__ import annotations

from rollout_contract.advantages.estimator import NonNegative, Singleton, estimator, to_tokens
from rollout_contract.advantages.groups import grouped
from rollout_contract.kernels.groups import above_mean, keep_singletons
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="(R - mean of the group) / (mean of the group + eps); 0 where the mean is not positive",
    paper="arXiv:2602.02710",
    known_as={"SkyRL": "trainer.algorithm.advantage_estimator=maxrl", "prime-rl": "algo.type=max_rl"},
)
def max_rl(batch: RewardBatch, *, eps: NonNegative = 0.0, singleton: Singleton = "zero") -> FixedTensor:
    """Maximum-likelihood advantages (arXiv:2602.02710), the same number on every trained token of a sample.

    Args:
        batch: rewards of 0 or more, and group ids of whole groups; NaN rewards are left out and get 0.
        eps: added to the mean; SkyRL has 1e-6.
        singleton: a group of one gets 0, or its ``raw`` reward (SkyRL).

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    mean = found.group.shift + found.group.offset
    advantages = above_mean(found.rewards, found.group) / (mean + eps).where(mean > 0, float("inf"))
    if singleton == "raw":
        advantages = keep_singletons(advantages, found.rewards, found.group)
    return to_tokens(batch, advantages)
