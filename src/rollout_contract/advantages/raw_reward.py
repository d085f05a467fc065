"""The reward itself: REINFORCE without a baseline."""

from __future__ import annotations

from rollout_contract.advantages.estimator import estimator, to_tokens
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="R",
    paper="https://doi.org/10.1007/BF00992696",
    known_as={
        "NeMo-RL": "grpo.adv_estimator.name=raw_reward",
        "miles": "--advantage-estimator grpo, --disable-rewards-normalization",
        "slime": "--advantage-estimator grpo, --disable-rewards-normalization",
    },
)
def raw_reward(batch: RewardBatch) -> FixedTensor:
    """The sample's reward on each of its trained tokens; 0 for a NaN reward (unscorable).

    Returns:
        [tokens], 0 at masked tokens.
    """
    rewards = read(batch, "rewards")
    return to_tokens(batch, rewards.where(~rewards.isnan(), 0.0))
