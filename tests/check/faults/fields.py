"""Fields that the schema does not have, or that a step of the life cycle has not set."""

from __future__ import annotations

from torch import Tensor

from rollout_contract import KLBatch, Loss, PolicyBatch, RolloutBatch, TISBatch, policy_loss
from rollout_contract.corrections import Correction, Truncate
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.objectives import PPOClip


def reads_what_the_schema_lacks(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    advantages = batch.advantages  # type: ignore[attr-defined]  # fault: missing-field
    return weighted_sum(batch, -log_probs * advantages, {})


def reads_by_name_what_the_schema_lacks(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    weights = read(batch, "rollout_log_probs")  # fault: missing-field
    return weighted_sum(batch, -log_probs * weights, {})


def gives_a_loss_too_little(batch: KLBatch) -> Loss:
    return policy_loss(batch, PPOClip())  # type: ignore[type-var]  # fault: missing-field


def corrects_without_rollout_scores(batch: PolicyBatch) -> Correction:
    return Truncate()(batch)  # type: ignore[arg-type]  # fault: missing-field


def needs_correction_weights(batch: TISBatch) -> Tensor:
    return (read(batch, "correction_weights") * read(batch, "old_log_probs")).sum()  # fault: missing-field


def reads_log_probs_of_a_bare_batch(batch: RolloutBatch) -> Tensor:
    return batch.log_probs.sum()  # type: ignore[attr-defined]  # fault: missing-field


def extends_with_a_wrong_name(batch: KLBatch) -> Loss:
    wider = batch.extend(KLBatch, reference_log_probs=batch.ref_log_probs)  # fault: missing-field
    return weighted_sum(wider, read(wider, "log_probs"), {})


def misses_a_dictionary_key(batch: KLBatch) -> Loss:
    found = {"kl": read(batch, "log_probs")}
    return weighted_sum(batch, found["k1"], {})  # fault: raises


def divides_by_a_string(batch: KLBatch) -> Loss:
    return weighted_sum(batch, read(batch, "log_probs") / "tokens", {})  # type: ignore[operator]  # fault: raises
