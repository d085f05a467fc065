"""Losses that depend on how a step is cut, and on the order of its samples."""

from __future__ import annotations

from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract import Fixed, Loss, PolicyBatch, TISBatch, Trainable
from rollout_contract.check import loss
from rollout_contract.corrections import Correction
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.objectives.base import Objective, Terms


@loss
def mean_of_the_micro_batch(batch: PolicyBatch) -> Float[Tensor, ""]:  # fault: split
    log_probs = read(batch, "log_probs")
    total = -(log_probs * read(batch, "advantages", like=log_probs)).sum()
    return total / batch.loss_mask.sum().clamp(min=1)


@loss
def mean_over_samples(batch: PolicyBatch) -> Float[Tensor, ""]:  # fault: split
    log_probs = read(batch, "log_probs")
    return -(log_probs * read(batch, "advantages", like=log_probs)).sum() / max(len(batch), 1)


def divided_by_response_lengths(batch: PolicyBatch) -> Loss:  # fault: split
    log_probs = read(batch, "log_probs")
    terms = -log_probs * read(batch, "advantages", like=log_probs)
    return Loss(terms.sum() / max(batch.layout.num_tokens, 1), Metrics())


def weighted_inside(batch: PolicyBatch) -> Loss:
    fresh = batch.weighted("token-mean")  # fault: split
    log_probs = read(fresh, "log_probs")
    return weighted_sum(fresh, -log_probs * read(fresh, "advantages", like=log_probs), {})


def whitened_inside(batch: PolicyBatch) -> Loss:  # fault: split
    log_probs = read(batch, "log_probs")
    advantages = read(batch, "advantages", like=log_probs)
    count = batch.loss_mask.sum().clamp(min=1)
    mean = advantages.sum() / count
    centred = torch.where(batch.loss_mask, advantages - mean, 0.0)
    return weighted_sum(batch, -log_probs * centred, {})


def first_sample_as_baseline(batch: PolicyBatch) -> Loss:  # fault: split
    log_probs = read(batch, "log_probs")
    advantages = read(batch, "advantages", like=log_probs)
    first = batch.layout.response_lengths[0] if len(batch) else 0
    return weighted_sum(batch, -log_probs * (advantages - advantages[:first].sum()), {})


def metric_of_means(batch: PolicyBatch) -> Loss:  # fault: split
    log_probs = read(batch, "log_probs")
    mean = (log_probs.sum() / batch.loss_mask.sum().clamp(min=1)).detach()
    found = {"log_prob": Metric("mean", torch.stack([mean, torch.ones_like(mean)]))}
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), found)


@loss
def padded_mean(
    log_probs: Trainable[Float[Tensor, "batch time"]],
    advantages: Fixed[Float[Tensor, "batch time"]],
    mask: Fixed[Bool[Tensor, "batch time"]],
) -> Float[Tensor, ""]:  # fault-at-def: split
    kept = -(log_probs.where(mask, 0.0) * advantages.detach().to(log_probs).where(mask, 0.0))
    return kept.sum() / mask.sum().clamp(min=1)


def weights_by_position_in_the_batch(batch: TISBatch) -> Correction:  # fault: permutation
    difference = read(batch, "old_log_probs") - read(batch, "rollout_log_probs", like=batch.old_log_probs)
    decay = 0.9 ** torch.arange(len(difference), device=batch.device, dtype=difference.dtype)
    return Correction(batch, weights=difference.exp() * decay)


def mask_by_position_in_the_batch(batch: TISBatch) -> Correction:  # fault: permutation
    kept = torch.arange(batch.layout.num_tokens, device=batch.device) % 2 == 0
    return Correction(batch, mask=batch.loss_mask & kept)


class AgainstTheNeighbour(Objective):
    """Compares each sample with the next one in the batch, and declares that a split changes it."""

    name = "against_the_neighbour"
    formula = "-l (A - A of the next sample)"
    paper = ""
    known_as = MappingProxyType({})
    reads = PolicyBatch
    batch_statistics = True

    def terms(self, batch: PolicyBatch, /) -> Terms:  # fault: permutation
        log_probs = read(batch, "log_probs")
        per_sample = batch.layout.sum(read(batch, "advantages", like=log_probs))
        return Terms(-log_probs * batch.layout.expand(per_sample - per_sample.roll(1)), Metrics())
