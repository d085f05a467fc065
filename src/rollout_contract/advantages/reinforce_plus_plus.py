"""REINFORCE++: discounted returns, or rewards above the group's mean, whitened over all tokens."""

from __future__ import annotations

from rollout_contract.advantages.estimator import Fraction, Singleton, estimator
from rollout_contract.advantages.grpo import grpo
from rollout_contract.advantages.returns import discounted_returns
from rollout_contract.advantages.whitening import DEFAULT_WHITENING, Whitening, whiten, whiten_where
from rollout_contract.kernels.returns import Masked
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch, TokenRewardBatch


@estimator(
    formula="G_t = r_t + gamma G_{t+1}, whitened over the trained tokens of the batch",
    paper="arXiv:2501.03262",
    known_as={
        "verl": "algorithm.adv_estimator=reinforce_plus_plus",
        "OpenRLHF": "--advantage_estimator reinforce",
        "SkyRL": "trainer.algorithm.advantage_estimator=reinforce++",
        "miles": "--advantage-estimator reinforce_plus_plus, --normalize-advantages",
        "slime": "--advantage-estimator reinforce_plus_plus, --normalize-advantages",
    },
)
def reinforce_plus_plus(
    batch: TokenRewardBatch,
    *,
    gamma: Fraction = 1.0,
    masked: Masked = "skip",
    whitening: Whitening = DEFAULT_WHITENING,
) -> FixedTensor:
    """Whitened returns (arXiv:2501.03262). The token rewards usually hold a KL penalty too.

    Args:
        batch: token rewards.
        gamma, masked: see :func:`discounted_returns`.
        whitening: see :func:`whiten`; over several ranks, whiten ``discounted_returns`` with their process group.

    Returns:
        [tokens], 0 at masked tokens.
    """
    return whiten(batch, discounted_returns(batch, gamma=gamma, masked=masked), whitening)


@estimator(
    formula="R - mean of the group, whitened over the trained tokens of the batch",
    paper="arXiv:2501.03262",
    known_as={
        "verl": "algorithm.adv_estimator=reinforce_plus_plus_baseline",
        "OpenRLHF": "--advantage_estimator reinforce_baseline",
        "NeMo-RL": "grpo.adv_estimator.name=reinforce_plus_plus, minus_baseline=true",
        "miles": "--advantage-estimator reinforce_plus_plus_baseline, --normalize-advantages",
        "slime": "--advantage-estimator reinforce_plus_plus_baseline, --normalize-advantages",
    },
)
def reinforce_plus_plus_baseline(
    batch: RewardBatch, *, singleton: Singleton = "zero", whitening: Whitening = DEFAULT_WHITENING
) -> FixedTensor:
    """Rewards above the group's mean, whitened (arXiv:2501.03262).

    A longer response has more tokens, so it weighs more in mean and variance. With a KL penalty per token, as miles and
    NeMo-RL have it: ``whiten(batch, dr_grpo(batch) - coefficient * kl)``.

    Args:
        batch: rewards and group ids of whole groups; samples with NaN rewards are left out and get 0.
        singleton: what a group of one has before the whitening: 0, or its ``raw`` reward (verl).
        whitening: see :func:`whiten`.

    Returns:
        [tokens], 0 at masked tokens.
    """
    scored = batch.loss_mask & batch.layout.expand(~read(batch, "rewards").isnan())
    return whiten_where(batch, grpo(batch, scale="none", singleton=singleton), scored, whitening)
