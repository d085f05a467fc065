"""Tensors on another device than the batch, shown without a GPU."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import FixedTensor, KLBatch, Loss, OPDBatch, PolicyBatch
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.schemas import RewardBatch, ValueBatch


def zeros_on_the_cpu(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    padding = torch.zeros(len(log_probs), dtype=log_probs.dtype)
    return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs) + padding, {})  # fault: device


def teacher_left_where_it_is(batch: OPDBatch) -> FixedTensor:
    with torch.no_grad():
        difference = batch.teacher_log_probs - batch.old_log_probs  # fault: device
        return torch.where(batch.loss_mask, difference, 0.0)


def result_on_the_host(batch: RewardBatch) -> FixedTensor:  # fault: device
    with torch.no_grad():
        return torch.where(batch.loss_mask, batch.layout.expand(read(batch, "rewards")), 0.0).cpu()


def index_on_the_cpu(batch: ValueBatch) -> Float[Tensor, "tokens"]:
    order = torch.arange(batch.layout.num_tokens)
    return read(batch, "returns").index_select(0, order)  # fault: device


def mask_from_a_list(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    first = torch.tensor([p == 0 for length in batch.layout.response_lengths for p in range(length)], dtype=torch.bool)
    kept = torch.where(first, log_probs, 0.0)  # fault: device
    return weighted_sum(batch, kept - read(batch, "ref_log_probs", like=log_probs), {})


Logits = Float[Tensor, "tokens vocab"]


def joined_with_a_fresh_tensor(values: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    return torch.cat([values[1:], torch.zeros(len(values) - len(values[1:]), dtype=values.dtype)])  # fault: device


def gathered_on_the_host(logits: Logits, ids: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:  # fault: device
    return logits.cpu().log_softmax(-1).gather(1, ids.cpu()[:, None])[:, 0]


def metrics_first(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    weights = torch.full((batch.layout.num_tokens,), 0.5, dtype=log_probs.dtype)
    scaled = log_probs * weights  # fault: device
    return weighted_sum(batch, -scaled * read(batch, "advantages", like=log_probs), {})
