"""Corrections that read what they must not, or are for other rows."""

from __future__ import annotations

import torch

from rollout_contract import TISBatch
from rollout_contract.corrections import Correction
from rollout_contract.losses.inputs import read


def ratio_of_the_current_policy(batch: TISBatch) -> Correction:
    difference = read(batch, "log_probs") - read(batch, "rollout_log_probs")  # fault: missing-field
    return Correction(batch, weights=difference.exp().clamp(max=2.0))


def for_other_rows(batch: TISBatch) -> Correction:  # fault: rows
    turned = batch.select(range(len(batch) - 1, -1, -1))
    difference = read(turned, "old_log_probs") - read(turned, "rollout_log_probs", like=turned.old_log_probs)
    return Correction(turned, weights=difference.exp())


def weights_below_zero(batch: TISBatch) -> Correction:
    difference = read(batch, "old_log_probs") - read(batch, "rollout_log_probs", like=batch.old_log_probs)
    return Correction(batch, weights=difference)  # fault: raises


def weights_per_sample(batch: TISBatch) -> Correction:
    difference = read(batch, "old_log_probs") - read(batch, "rollout_log_probs", like=batch.old_log_probs)
    return Correction(batch, weights=batch.layout.sum(difference).exp())  # fault: shape


def mask_that_grows(batch: TISBatch) -> Correction:
    return Correction(batch, mask=torch.ones_like(batch.loss_mask))  # fault: raises
