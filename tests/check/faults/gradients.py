"""Gradients that go where they must not, or do not go where they must."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract import Fixed, FixedTensor, KLBatch, Loss, OPDBatch, PolicyBatch, TISBatch, Trainable
from rollout_contract.check import loss
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.roles import TrainableTensor
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import EntropyBatch, ValueBatch


class PolicyAndEntropy(PolicyBatch, EntropyBatch):
    """A schema with two trainable fields."""


# -- a fixed input is differentiated through -----------------------------------------------------------------------


def live_old_log_probs(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    old_log_probs = torch.where(batch.loss_mask, batch.old_log_probs, 0.0).to(log_probs)  # fault: live-input
    ratio = (log_probs - old_log_probs).exp()
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def live_importance_weight(batch: TISBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    old = read(batch, "old_log_probs", like=log_probs)
    rollout = batch.rollout_log_probs.where(batch.loss_mask, 0.0).to(log_probs)  # fault: live-input
    return weighted_sum(batch, -(old - rollout).exp().clamp(max=2.0) * log_probs, {})


def live_distillation_advantage(batch: OPDBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    student = batch.old_log_probs.where(batch.loss_mask, 0.0).to(log_probs)  # fault: live-input
    teacher = batch.teacher_log_probs.to(log_probs).where(batch.loss_mask, 0.0)  # fault: live-input
    return weighted_sum(batch, (student - teacher) * log_probs, {})


def live_reference(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    difference = log_probs - torch.where(batch.loss_mask, batch.ref_log_probs, 0.0).to(log_probs)  # fault: live-input
    return weighted_sum(batch, 0.5 * difference.square(), {})


def live_returns(batch: ValueBatch) -> Loss:
    predictions = read(batch, "value_predictions")
    returns = torch.where(batch.loss_mask, batch.returns, 0.0).to(predictions)  # fault: live-input
    unused = read(batch, "values")
    return weighted_sum(batch, (predictions - returns).square() + 0.0 * unused.to(predictions), {})


def live_parameters(
    log_probs: Trainable[Float[Tensor, "tokens"]],
    old_log_probs: Fixed[Float[Tensor, "tokens"]],
    advantages: Fixed[Float[Tensor, "tokens"]],
    loss_mask: Fixed[Bool[Tensor, "tokens"]],
) -> Float[Tensor, ""]:
    difference = (log_probs - old_log_probs.to(log_probs)).where(loss_mask, 0.0)  # fault: live-input
    kept = advantages.to(log_probs).where(loss_mask, 0.0).detach()
    return -(difference.exp() * kept).sum()


def typed_live_parameters(
    log_probs: Float[TrainableTensor, "tokens"],
    weights: Float[FixedTensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
) -> Tensor:
    kept = log_probs.where(loss_mask, 0.0)
    return -(kept * weights.to(kept).where(loss_mask, 0.0)).sum()  # fault: live-input


def live_advantages_as_result(batch: OPDBatch) -> FixedTensor:  # fault: live-output
    teacher = batch.teacher_log_probs.to(batch.old_log_probs)
    return torch.where(batch.loss_mask, teacher - batch.old_log_probs, 0.0)


class Estimate(NamedTuple):
    advantages: FixedTensor
    baseline: Tensor


def live_advantages_in_tuple(batch: ValueBatch) -> Estimate:  # fault: live-output
    difference = torch.where(batch.loss_mask, batch.returns - batch.values, 0.0)
    return Estimate(difference, difference.detach())


# -- a trainable input is not differentiated through ---------------------------------------------------------------


def detached(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs").detach()  # fault: unreached
    ratio = (log_probs - read(batch, "old_log_probs", like=log_probs)).exp()
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


@torch.no_grad()
def kl_without_gradient(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")  # fault: unreached
    difference = read(batch, "ref_log_probs", like=log_probs) - log_probs
    return weighted_sum(batch, difference.exp() - 1.0 - difference, {})


def through_data(batch: KLBatch) -> Loss:
    log_probs = batch.log_probs.data.where(batch.loss_mask, 0.0)  # fault: unreached
    return weighted_sum(batch, (log_probs - read(batch, "ref_log_probs", like=log_probs)).square(), {})


def never_read(batch: PolicyAndEntropy) -> Loss:  # fault: unreached
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


def ratio_with_itself(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")  # fault: unreached
    ratio = (log_probs - log_probs * 1.0).exp()
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def through_lists(batch: PolicyBatch) -> Loss:
    log_probs = torch.tensor(read(batch, "log_probs").tolist()).to(batch.log_probs)  # fault: unreached
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})


def through_comparison(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")  # fault: unreached
    kept = (log_probs > read(batch, "old_log_probs", like=log_probs)).to(log_probs.dtype)
    return weighted_sum(batch, kept * read(batch, "advantages", like=log_probs), {})


@loss
def parameter_detached(
    log_probs: Trainable[Float[Tensor, "tokens"]], weights: Fixed[Float[Tensor, "tokens"]]
) -> Float[Tensor, ""]:
    return -(log_probs.detach() * weights.detach().to(log_probs)).sum()  # fault: unreached


Logits = Float[TrainableTensor, "tokens vocab"]


def entropy_without_graph(logits: Logits) -> Float[TrainableTensor, "tokens"]:  # fault: unreached
    log_probs = logits.detach().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


# -- metrics that keep the graph -----------------------------------------------------------------------------------


def live_metric(batch: PolicyBatch) -> tuple[Tensor, dict[str, Tensor]]:
    log_probs = read(batch, "log_probs")
    ratio = (log_probs - read(batch, "old_log_probs", like=log_probs)).exp()
    value = -(read(batch, "loss_weights", like=log_probs) * ratio * read(batch, "advantages", like=log_probs)).sum()
    return value, {
        "ratio": (ratio * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1),  # fault: metric-graph
        "tokens": batch.loss_mask.sum(),
    }


def live_metric_beside_a_loss(batch: KLBatch) -> tuple[Loss, dict[str, Tensor]]:
    log_probs = read(batch, "log_probs")
    difference = log_probs - read(batch, "ref_log_probs", like=log_probs)
    found = {"kl": difference.sum()}  # fault: metric-graph
    return weighted_sum(batch, 0.5 * difference.square(), {}), found


def live_metric_keyword(
    batch: RolloutBatch, log_probs: Trainable[Float[Tensor, "tokens"]]
) -> tuple[Tensor, dict[str, Tensor]]:
    kept = log_probs.where(batch.loss_mask, 0.0)
    value = -(kept * read(batch, "loss_weights", like=kept)).sum()
    return value, {"nll": value * 1.0}  # fault: metric-graph


# -- a backward pass that fails ------------------------------------------------------------------------------------


def edits_what_backward_needs(batch: PolicyBatch) -> Loss:  # fault: raises
    log_probs = read(batch, "log_probs")
    ratio = (log_probs - read(batch, "old_log_probs", like=log_probs)).exp()
    terms = -ratio * read(batch, "advantages", like=log_probs)
    ratio.clamp_(max=2.0)
    return weighted_sum(batch, terms + ratio, {})


# -- two batches ---------------------------------------------------------------------------------------------------


def two_batches(student: KLBatch, teacher: OPDBatch) -> Loss:
    log_probs = read(student, "log_probs")
    unused = read(teacher, "log_probs", like=log_probs).detach()  # fault: unreached
    return weighted_sum(student, (log_probs - read(student, "ref_log_probs", like=log_probs)) * unused, {})
