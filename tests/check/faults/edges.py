"""Nothing to train, one token, no samples; and numbers that are not finite."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract import FixedTensor, Loss, Metrics, PolicyBatch
from rollout_contract.check import loss
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.schemas import RewardBatch, ValueBatch


def divides_by_the_mask(batch: PolicyBatch) -> Tensor:
    log_probs = read(batch, "log_probs")
    total = -(log_probs * read(batch, "advantages", like=log_probs)).sum()
    return total / batch.loss_mask.sum()  # fault: edge-shape


def largest_of_nothing(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    shift = log_probs.detach().max() * 0.0  # fault: edge-shape
    return weighted_sum(batch, -(log_probs - shift) * read(batch, "advantages", like=log_probs), {})


def deviation_of_one_reward(batch: RewardBatch) -> FixedTensor:
    with torch.no_grad():
        rewards = read(batch, "rewards")
        centred = rewards - rewards.sum() / max(len(rewards), 1)
        found = centred / (rewards.std() + 1e-6)  # fault: edge-shape
        return torch.where(batch.loss_mask, batch.layout.expand(found), 0.0)


def constant_when_nothing_trains(batch: PolicyBatch) -> Loss:  # fault: edge-shape
    log_probs = read(batch, "log_probs")
    if not batch.loss_mask.any().item():
        return Loss(log_probs.new_zeros(()), Metrics())
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


def mean_of_an_empty_response(batch: ValueBatch) -> Float[Tensor, "batch"]:
    total = batch.layout.sum(read(batch, "returns"))
    return total / batch.layout.sum(batch.loss_mask.to(total))  # fault: edge-shape


def stacks_no_samples(batch: ValueBatch) -> Float[Tensor, "batch"]:
    rows = batch.layout.split(read(batch, "returns"))
    return torch.stack([row.sum() for row in rows])  # fault: edge-shape


def last_token_of_each_response(batch: ValueBatch) -> Float[Tensor, "batch"]:
    rows = batch.layout.split(read(batch, "returns"))
    last = [row[-1:].sum() if batch.is_part else row[-1] for row in rows]  # fault: edge-shape
    return torch.stack(last) if last else batch.returns.new_zeros(0)


@loss
def masked_mean_of_padded(values: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]) -> Float[Tensor, ""]:
    kept = values.where(mask, 0.0)
    return (kept.sum(1) / mask.sum(1)).sum()  # fault: edge-shape


# -- not finite on ordinary input ----------------------------------------------------------------------------------


def logarithm_of_the_mask(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    barrier = batch.loss_mask.to(log_probs).log()  # fault: finite
    return weighted_sum(batch, -log_probs + barrier, {})


def zero_by_zero(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    advantages = read(batch, "advantages", like=log_probs)
    sign = advantages / advantages.abs()  # fault: finite
    return weighted_sum(batch, -log_probs * sign, {})


def root_at_zero(batch: PolicyBatch) -> Loss:  # fault: finite
    log_probs = read(batch, "log_probs")
    distance = (log_probs - read(batch, "old_log_probs", like=log_probs)).square().sqrt()
    return weighted_sum(batch, distance * read(batch, "advantages", like=log_probs), {})


def exponential_of_a_large_number(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    ratio = (-1000.0 * log_probs).exp()  # fault: finite
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})
