"""Masked tokens that are seen."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract import Fixed, FixedTensor, Loss, PolicyBatch, TISBatch, Trainable
from rollout_contract.corrections import Correction
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.metrics import Metric
from rollout_contract.schemas import RewardBatch, ValueBatch


def multiplied_by_the_mask(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    ratio = (log_probs - batch.old_log_probs.detach().to(log_probs)).exp()  # fault: masked
    terms = -ratio * read(batch, "advantages", like=log_probs) * batch.loss_mask
    return weighted_sum(batch, terms, {})


def filled_after_exp(batch: PolicyBatch) -> Loss:
    log_probs = batch.log_probs  # fault: masked
    ratio = (log_probs - read(batch, "old_log_probs", like=log_probs)).exp()
    terms = torch.where(batch.loss_mask, -ratio * read(batch, "advantages", like=log_probs), 0.0)
    return weighted_sum(batch, terms, {})


def advantages_left_as_they_are(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, -log_probs * batch.advantages.detach().to(log_probs), {})  # fault: masked


def sequence_ratio_over_all_tokens(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    old = batch.old_log_probs.detach().to(log_probs)  # fault: masked
    everything = torch.ones_like(batch.loss_mask)
    ratio = batch.layout.expand(batch.layout.mean(log_probs - old, everything).exp())
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def advantages_centred_over_all_tokens(batch: ValueBatch) -> FixedTensor:
    found = (batch.returns - read(batch, "values")).detach()  # fault: masked
    return torch.where(batch.loss_mask, found - found.sum() / max(len(found), 1), 0.0)


def metric_over_all_tokens(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    old = batch.old_log_probs.detach().to(log_probs)  # fault: masked
    ratio = (log_probs - old.where(batch.loss_mask, 0.0)).exp()
    found = {"old": Metric("sum", old.sum().reshape(1))}
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), found)


def weights_normalised_over_all_tokens(batch: TISBatch) -> Correction:
    ratio = (read(batch, "old_log_probs") - batch.rollout_log_probs.detach()).exp()  # fault: masked
    return Correction(batch, weights=ratio / (ratio.sum() / max(len(ratio), 1)))


def veto_by_any_token(batch: TISBatch) -> Correction:
    difference = read(batch, "old_log_probs") - batch.rollout_log_probs.detach()  # fault: masked
    worst = batch.layout.expand(batch.layout.max(difference.abs()))
    return Correction(batch, mask=(worst < 2.0) & batch.loss_mask)


def per_sample_sum_of_everything(batch: ValueBatch) -> Float[Tensor, "batch"]:
    return batch.layout.sum(batch.returns.detach())  # fault: masked


def padded_without_mask(
    log_probs: Trainable[Float[Tensor, "batch time"]],
    advantages: Fixed[Float[Tensor, "batch time"]],
    mask: Fixed[Bool[Tensor, "batch time"]],
) -> Float[Tensor, ""]:
    kept = log_probs.where(mask, 0.0)
    fixed = advantages.detach().to(kept)  # fault: masked
    return -(kept * (fixed - fixed.sum())).where(mask, 0.0).sum()


def shaped_by_raw_length(batch: RewardBatch, scores: Fixed[Float[Tensor, "tokens"]]) -> FixedTensor:
    total = batch.layout.sum(scores.detach())  # fault: masked
    return torch.where(batch.loss_mask, batch.layout.expand(total + read(batch, "rewards").to(total)), 0.0)
