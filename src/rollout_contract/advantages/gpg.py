"""GPG: centred rewards, scaled up when many samples of the batch have none."""

from __future__ import annotations

from pydantic import PositiveFloat

from rollout_contract.advantages.estimator import Singleton, estimator, to_tokens
from rollout_contract.advantages.groups import grouped
from rollout_contract.kernels.groups import above_mean, keep_singletons
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="alpha (R - mean of the group) / F, alpha = samples / samples with R != 0",
    paper="arXiv:2504.02546",
    known_as={"verl": "algorithm.adv_estimator=gpg"},
)
def gpg(batch: RewardBatch, *, f_norm: PositiveFloat = 1.0, singleton: Singleton = "zero") -> FixedTensor:
    """Group policy gradient's advantages (arXiv:2504.02546), the same number on every trained token of a sample.

    Args:
        batch: rewards and group ids of whole groups; NaN rewards are left out and get 0.
        f_norm: F, the divisor.
        singleton: a group of one gets 0, or alpha times its ``raw`` reward (verl).

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    advantages = above_mean(found.rewards, found.group)
    if singleton == "raw":
        advantages = keep_singletons(advantages, found.rewards, found.group)
    scored = ~found.rewards.isnan()
    rewarded = (scored & (found.rewards != 0)).sum().clamp(min=1)
    alpha = scored.sum().to(advantages.dtype) / rewarded
    return to_tokens(batch, alpha * advantages / f_norm)
