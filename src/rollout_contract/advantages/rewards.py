"""From one reward per sample to one per token."""

from __future__ import annotations

import torch

from rollout_contract.advantages.estimator import fixed
from rollout_contract.kernels.returns import last_trainable
from rollout_contract.losses.inputs import read, require
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


def place_rewards(batch: RewardBatch) -> FixedTensor:
    """Each sample's reward on its last trained token, 0 everywhere else.

    Never on a tool token after it, where no estimator would see it. The reward of a sample without trained tokens is on
    none. A NaN reward stays NaN, and a batch of token rewards refuses it: mask such a sample out, or use an estimator
    that compares groups.

    Returns:
        [tokens], for the field ``token_rewards``. With a KL penalty in the reward: subtract ``coefficient * kl``, or
        extend the batch and use ``rollout_contract.kl_reward``.
    """
    require(batch, RewardBatch, "place_rewards")
    with torch.no_grad():
        last = last_trainable(batch.loss_mask, batch.layout.sample_ids(batch.device), len(batch))
        return fixed(batch.layout.expand(read(batch, "rewards")).where(last, 0.0))
