"""RLOO: the reward minus what the other members of the group got."""

from __future__ import annotations

from rollout_contract.advantages.estimator import Singleton, estimator, to_tokens
from rollout_contract.advantages.groups import grouped
from rollout_contract.kernels.groups import above_others, keep_singletons
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="R - mean of the others = n / (n - 1) (R - mean of the group)",
    paper="arXiv:2402.14740",
    known_as={
        "verl": "algorithm.adv_estimator=rloo | rloo_vectorized",
        "OpenRLHF": "--advantage_estimator rloo",
        "SkyRL": "trainer.algorithm.advantage_estimator=rloo",
        "TRL": "RLOOTrainer",
    },
)
def rloo(batch: RewardBatch, *, singleton: Singleton = "zero") -> FixedTensor:
    """Leave-one-out advantages (arXiv:2402.14740), the same number on every trained token of a sample.

    Args:
        batch: rewards and group ids of whole groups; NaN rewards are left out and get 0.
        singleton: a group of one has no others: 0 (verl's vectorised form, SkyRL) or its ``raw`` reward (verl's loop).

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    advantages = above_others(found.rewards, found.group)
    if singleton == "raw":
        advantages = keep_singletons(advantages, found.rewards, found.group)
    return to_tokens(batch, advantages)
