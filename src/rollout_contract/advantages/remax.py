"""ReMax: reward to go, minus the reward of the greedy response to the same prompt."""

from __future__ import annotations

from rollout_contract.advantages.estimator import AdvantagesAndReturns, estimator, fixed, to_tokens
from rollout_contract.advantages.returns import discounted_returns
from rollout_contract.losses.inputs import read
from rollout_contract.schemas import ReMaxBatch


@estimator(
    formula="G_t - reward of the greedy response, G_t = sum of the rewards from t on",
    paper="arXiv:2310.10505",
    known_as={"verl": "algorithm.adv_estimator=remax"},
)
def remax(batch: ReMaxBatch) -> AdvantagesAndReturns:
    """Advantages over the greedy response's reward (arXiv:2310.10505), and the reward to go.

    Args:
        batch: token rewards, and the reward of the greedy response for each sample.

    Returns:
        advantages and returns, [tokens], 0 at masked tokens.
    """
    to_go = discounted_returns(batch)
    baseline = to_tokens(batch, read(batch, "reward_baselines", like=to_go))
    return AdvantagesAndReturns(fixed(to_go - baseline), to_go)
