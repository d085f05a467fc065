"""Roles that are confused between annotated functions, which jaxtyping and beartype find while the check runs them."""

from __future__ import annotations

from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor

from rollout_contract import FixedTensor, KLBatch, Loss, TISBatch, TrainableTensor
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum

Live = Float[TrainableTensor, "tokens"]
Constant = Float[FixedTensor, "tokens"]


@jaxtyped(typechecker=beartype)
def reinforce(log_probs: Live, weights: Constant) -> Float[Tensor, "tokens"]:
    return -(log_probs * weights.to(log_probs))


def weights_of_the_current_policy(batch: TISBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    weights = (log_probs - read(batch, "rollout_log_probs", like=log_probs)).exp()
    return weighted_sum(batch, reinforce(log_probs, weights) + read(batch, "old_log_probs"), {})  # fault: live-input


def fixed_where_trainable_belongs(batch: KLBatch) -> Loss:
    reference = read(batch, "ref_log_probs")
    return weighted_sum(batch, reinforce(reference, reference) * read(batch, "log_probs"), {})  # fault: unreached


def per_sample_where_per_token_belongs(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    lengths = batch.layout.lengths(batch.device).to(log_probs)
    return weighted_sum(batch, reinforce(log_probs, lengths), {})  # fault: shape


@jaxtyped(typechecker=beartype)
def promises_one_per_sample(values: Float[Tensor, "tokens"], rewards: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    return values  # fault-at-def: shape
