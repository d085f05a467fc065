"""Shapes that contradict the annotations, broadcast in silence, or were written down."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, FixedTensor, Loss, PolicyBatch, Trainable
from rollout_contract.check import loss
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.schemas import LiveBatch, RewardBatch, ValueBatch


class Rewarded(LiveBatch, RewardBatch):
    """Rewards per sample beside live log-probs."""


# -- one dimension taken for another -------------------------------------------------------------------------------


def rewards_times_tokens(batch: Rewarded) -> Loss:
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, -log_probs * read(batch, "rewards", like=log_probs), {})  # fault: broadcast


def sequence_ratio_times_mask(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    difference = log_probs - read(batch, "old_log_probs", like=log_probs)
    ratio = batch.layout.mean(difference, batch.loss_mask).exp()
    terms = ratio * batch.loss_mask  # fault: broadcast
    return weighted_sum(batch, -terms * read(batch, "advantages", like=log_probs), {})


def padded_advantages_per_sample(
    log_probs: Trainable[Float[Tensor, "batch time"]], advantages: Fixed[Float[Tensor, "batch"]]
) -> Float[Tensor, ""]:
    return -(log_probs * advantages.detach()).sum()  # fault: broadcast


@loss
def column_times_row(batch: PolicyBatch) -> Float[Tensor, ""]:
    log_probs = read(batch, "log_probs")
    advantages = read(batch, "advantages", like=log_probs).unsqueeze(-1)
    weights = read(batch, "loss_weights", like=log_probs)
    return -(log_probs * advantages * weights).sum()  # fault: broadcast


@loss
def column_of_differences(
    log_probs: Trainable[Float[Tensor, "tokens"]], old_log_probs: Fixed[Float[Tensor, "tokens 1"]]
) -> Float[Tensor, ""]:
    difference = log_probs - old_log_probs.detach().to(log_probs)  # fault: broadcast
    return difference.square().sum()


def told_apart_by_length(batch: Rewarded) -> Loss:  # fault: broadcast
    log_probs = read(batch, "log_probs")
    scale = read(batch, "rewards", like=log_probs)
    if scale.shape[0] != log_probs.shape[0]:
        scale = batch.layout.expand(scale)
    return weighted_sum(batch, -log_probs * scale, {})


@loss
def told_apart_by_shape(batch: Rewarded) -> Float[Tensor, ""]:  # fault: broadcast
    log_probs, rewards = read(batch, "log_probs"), read(batch, "rewards", like=batch.log_probs)
    per_token = rewards if rewards.shape == log_probs.shape else batch.layout.expand(rewards)
    return -(read(batch, "loss_weights", like=log_probs) * log_probs * per_token).sum()


def logits_and_tokens(logits: Float[Tensor, "tokens vocab"], ids: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    return logits.log_softmax(-1)[:, 0] * logits.sum(0) + 0.0 * ids  # fault: broadcast


def product_of_wrong_axes(left: Float[Tensor, "tokens hidden"], right: Float[Tensor, "vocab hidden"]) -> Tensor:
    return left @ right  # fault: shape


# -- results of another shape --------------------------------------------------------------------------------------


def per_token_instead_of_per_sample(batch: RewardBatch) -> Float[FixedTensor, "batch"]:  # fault: shape
    with torch.no_grad():
        return batch.layout.expand(read(batch, "rewards"))


def mean_over_the_wrong_axis(logits: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens"]:  # fault: shape
    return logits.logsumexp(0)


def with_a_trailing_dimension(
    log_probs: Float[Tensor, "tokens vocab"], ids: Int[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:  # fault-at-def: shape
    return log_probs.gather(1, ids[:, None])


@loss
def without_reduction(batch: PolicyBatch) -> Tensor:  # fault: shape
    log_probs = read(batch, "log_probs")
    return -log_probs * read(batch, "advantages", like=log_probs)


def a_number_instead_of_a_loss(batch: PolicyBatch) -> Loss:  # fault: shape
    log_probs = read(batch, "log_probs")
    return (-log_probs * read(batch, "advantages", like=log_probs)).sum()  # type: ignore[return-value]


def a_float_instead_of_a_tensor(batch: ValueBatch) -> Float[Tensor, ""]:  # fault: shape
    return read(batch, "returns").sum().item()  # type: ignore[return-value]


def one_entry_short(log_probs: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:  # fault: shape
    return log_probs[1:] - log_probs[:-1]


def joined_along_the_wrong_axis(
    values: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"]
) -> dict[str, Float[Tensor, "tokens"]]:  # fault-at-def: shape
    return {"values": values, "both": torch.cat([values, returns])}


def lengths_counted_from_the_mask(batch: ValueBatch) -> Float[Tensor, "batch"]:
    lengths = batch.layout.sum(batch.loss_mask.to(torch.float32)).int().tolist()
    parts = read(batch, "returns").split(lengths)  # fault: shape
    return torch.stack([part.sum() for part in parts])


# -- sizes that were written down ----------------------------------------------------------------------------------


def four_rows(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    rows = log_probs.reshape(4, -1)  # fault: hard-coded-size
    return weighted_sum(batch, -rows.flatten() * read(batch, "advantages", like=log_probs), {})


def a_vector_of_eight(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    decay = torch.linspace(1.0, 0.0, 8, dtype=log_probs.dtype, device=log_probs.device)
    return weighted_sum(batch, -log_probs * decay, {})  # fault: hard-coded-size


def twenty_sixth_token(log_probs: Float[Tensor, "tokens"]) -> Float[Tensor, ""]:
    return log_probs[25]  # fault: hard-coded-size


def five_samples(rewards: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    return rewards - rewards.mean().expand(1).repeat(5)  # fault: hard-coded-size


def first_sixteen_tokens(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")  # fault: hard-coded-size
    kept = torch.cat([log_probs[:16], log_probs.new_zeros(max(len(log_probs) - 16, 0))])
    return weighted_sum(batch, -kept * read(batch, "advantages", like=log_probs), {})


def a_buffer_of_32(values: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:  # fault: hard-coded-size
    buffer = values.new_zeros(32)
    buffer[: len(values)] = values
    return buffer


# -- one entry -----------------------------------------------------------------------------------------------------


def squeezed(values: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:  # fault: edge-shape
    return values.unsqueeze(0).squeeze()
