"""Precision that is lost, or gained by accident."""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float, Float32, Int
from torch import Tensor

from rollout_contract import Fixed, Loss, PolicyBatch, TISBatch, Trainable, unbound
from rollout_contract.check import loss
from rollout_contract.corrections import Correction
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.schema.batch import RolloutBatch


class ScoredInHalf(RolloutBatch):
    rollout_log_probs: Fixed[BFloat16[Tensor, "tokens"]]  # fault: half-precision


class LiveOldScores(RolloutBatch):
    old_log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()  # fault: role


class FixedPolicy(RolloutBatch):
    log_probs: Fixed[Float[Tensor, "tokens"]]  # fault: role


class LiveAdvantages(RolloutBatch):
    advantages: Trainable[Float[Tensor, "batch"]] = unbound()  # fault: role


def rollout_scores_in_half(batch: TISBatch) -> Correction:
    rollout = read(batch, "rollout_log_probs").bfloat16().float()  # fault: half-precision
    return Correction(batch, weights=(read(batch, "old_log_probs").float() - rollout).exp().clamp(max=2.0))


def ratio_in_half(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    difference = (log_probs - read(batch, "old_log_probs", like=log_probs)).half()  # fault: half-precision
    ratio = difference.exp().to(log_probs.dtype)
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def promoted_by_the_advantages(batch: PolicyBatch) -> Loss:  # fault: dtype
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, -log_probs * read(batch, "advantages"), {})


def always_in_double(batch: PolicyBatch) -> Loss:  # fault: dtype
    log_probs = read(batch, "log_probs").double()
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


def always_in_single(batch: PolicyBatch) -> Loss:  # fault: dtype
    log_probs = read(batch, "log_probs").float()
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


@loss
def only_one_precision(
    log_probs: Trainable[Float[Tensor, "tokens"]], advantages: Fixed[Float[Tensor, "tokens"]]
) -> Float[Tensor, ""]:
    return -torch.dot(log_probs, advantages.detach())  # fault: dtype


def counted_in_floats(logits: Float[Tensor, "tokens vocab"]) -> Int[Tensor, "tokens"]:  # fault: dtype
    return (logits > 0).sum(-1).float()


def single_by_annotation(values: Float[Tensor, "tokens"]) -> Float32[Tensor, "tokens"]:  # fault: dtype
    return values.double()


def one_minus_a_bool(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    dropped = 1 - batch.loss_mask  # fault: dtype
    return weighted_sum(batch, -log_probs * (1 - dropped), {})


def mean_of_a_mask(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    share = batch.loss_mask.mean()  # fault: dtype
    return weighted_sum(batch, -log_probs * share, {})


def maximum_of_a_dimension(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    count = torch.max(batch.loss_mask.sum(), 1)  # fault: shape
    return weighted_sum(batch, -log_probs / count, {})
