"""Input that is edited in place."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, FixedTensor, KLBatch, Loss, PolicyBatch, Trainable
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.schemas import RewardBatch, ValueBatch


def centres_rewards(batch: RewardBatch) -> FixedTensor:
    rewards = batch.rewards
    rewards -= 0.5  # fault: in-place
    return torch.where(batch.loss_mask, batch.layout.expand(rewards.clone()), 0.0).detach()


def adds_the_reward_to_the_last_token(
    kl: Fixed[Float[Tensor, "tokens"]], rewards: Fixed[Float[Tensor, "batch"]]
) -> Float[Tensor, "tokens"]:
    kl[-1:] += rewards[-1:]  # fault: in-place
    return kl.clone()


def scales_with_mul(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    batch.advantages.mul_(2.0)  # fault: in-place
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


def clamps_the_old_scores(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    old = batch.old_log_probs.clamp_(min=-1.0)  # fault: in-place
    ratio = (log_probs - old.detach().where(batch.loss_mask, 0.0).to(log_probs)).exp()
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def writes_into_out(values: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    torch.sub(returns, values, out=returns)  # fault: in-place
    return returns.clone()


def zeroes_through_a_view(values: Fixed[Float[Tensor, "tokens"]]) -> Float[Tensor, "tokens"]:
    tail = values[2:]
    tail.zero_()  # fault: in-place
    return values.clone()


def edits_through_numpy(batch: ValueBatch) -> FixedTensor:
    array = batch.returns.detach().numpy()  # fault: in-place
    array += 1.0
    return torch.where(batch.loss_mask, torch.tensor(array), 0.0).to(batch.device)


def edits_the_live_log_probs(batch: KLBatch) -> Loss:
    live = batch.log_probs
    live.add_(0.5)  # fault: in-place
    difference = live.where(batch.loss_mask, 0.0) - read(batch, "ref_log_probs", like=live)
    return weighted_sum(batch, difference.square(), {})


def fills_masked_tokens_in_place(
    log_probs: Trainable[Float[Tensor, "tokens"]], old_log_probs: Fixed[Float[Tensor, "tokens"]]
) -> Float[Tensor, ""]:
    fixed = old_log_probs.detach()
    fixed[old_log_probs < -2.0] = 0.0  # fault: in-place
    return (log_probs - fixed.to(log_probs)).square().sum()
