"""Discounted returns: what REINFORCE takes as advantages."""

from __future__ import annotations

from rollout_contract.advantages.estimator import Fraction, estimator, fixed
from rollout_contract.kernels.returns import Masked, discounted_sums
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import TokenRewardBatch


@estimator(
    formula="G_t = r_t + gamma G_{t+1}",
    paper="https://doi.org/10.1007/BF00992696",
    known_as={"OpenRLHF": "(--advantage_estimator reinforce, before its normalization)"},
)
def discounted_returns(batch: TokenRewardBatch, *, gamma: Fraction = 1.0, masked: Masked = "skip") -> FixedTensor:
    """The sum of the rewards from each token to the end of its response, discounted.

    Args:
        batch: token rewards, for example those of ``place_rewards``.
        gamma: the discount per step.
        masked: what a masked token inside a response is. ``skip``: no transition, since the policy did not act there.
            ``step``: a time step without reward, that discounts what comes later (OpenRLHF, miles, slime). ``reset``: a
            wall (verl, SkyRL): tokens before a tool call then never see the final reward.

    Returns:
        [tokens], 0 at masked tokens.
    """
    mask, ids = batch.loss_mask, batch.layout.sample_ids(batch.device)
    sums = discounted_sums(read(batch, "token_rewards"), mask, ids, gamma, masked)
    return fixed(sums.where(mask, 0.0))
