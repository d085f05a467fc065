"""Faults that users of trainers reported in public, as small functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rollout_contract import Fixed, FixedTensor, KLBatch, Loss, OPDBatch, PolicyBatch, TISBatch, Trainable
from rollout_contract.check import loss
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum

Live = Trainable[Float[Tensor, "tokens"]]
Constant = Fixed[Float[Tensor, "tokens"]]
LiveRows = Trainable[Float[Tensor, "batch time"]]
Rows = Fixed[Float[Tensor, "batch time"]]
RowMask = Fixed[Bool[Tensor, "batch time"]]


def case_001_distillation_advantage(student: Constant, teacher: Constant, log_probs: Live) -> Float[Tensor, ""]:
    advantages = 2.0 - 0.5 * (student - teacher).to(log_probs)  # fault: live-input
    return -(advantages * log_probs).sum()


def case_002_weight_of_the_bypass_mode(log_probs: Live, rollout: Constant) -> Float[Tensor, ""]:
    weight = (log_probs.detach() - rollout.to(log_probs)).exp().clamp(max=2.0)  # fault: live-input
    return -(weight * log_probs).sum()


def case_004_old_is_the_same_live_tensor(log_probs: Live, advantages: Constant) -> Float[Tensor, ""]:
    old = log_probs * 1.0  # fault: unreached
    ratio = (log_probs - old).exp()
    return -(ratio * advantages.detach().to(log_probs)).sum()


def case_005_advantages_of_a_critic(values: Constant, returns: Constant, log_probs: Live) -> Float[Tensor, ""]:
    advantages = (returns - values).to(log_probs)  # fault: live-input
    return -(advantages * log_probs).sum()


def case_007_live_ratio_in_the_stats(log_probs: Live, old: Constant) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = (log_probs - old.detach().to(log_probs)).exp()
    return -ratio.sum(), {"ratio": ratio}  # fault: metric-graph


@torch.no_grad()
def case_009_kl_loss_without_gradient(log_probs: Live, ref: Constant) -> Float[Tensor, ""]:
    difference = ref.to(log_probs) - log_probs  # fault: unreached
    return (difference.exp() - 1 - difference).sum()


def case_011_advantages_per_sample(log_probs: LiveRows, advantages: Fixed[Float[Tensor, "batch"]]) -> Float[Tensor, ""]:
    return -(log_probs * advantages.detach().to(log_probs)).mean()  # fault: broadcast


def case_013_a_column_of_advantages(log_probs: Live, advantages: Fixed[Float[Tensor, "tokens 1"]]) -> Float[Tensor, ""]:
    return -(log_probs * advantages.detach().to(log_probs)).sum()  # fault: broadcast


def case_015_centred_over_the_batch(log_probs: LiveRows, advantages: Rows, mask: RowMask) -> Float[Tensor, ""]:
    fixed = advantages.detach().to(log_probs).where(mask, 0.0)
    centred = log_probs - log_probs.sum()  # fault: masked
    return -(centred * fixed).where(mask, 0.0).sum()


def case_017_rows_filtered_in_one_field(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    kept = read(batch, "advantages", like=log_probs)[batch.loss_mask]
    return weighted_sum(batch, -log_probs * kept, {})  # fault: broadcast


def case_020_teacher_on_another_device(batch: OPDBatch) -> FixedTensor:
    student = read(batch, "old_log_probs").detach()
    penalty = student - batch.teacher_log_probs.detach()  # fault: device
    return torch.where(batch.loss_mask, penalty, 0.0)


def case_023_rollout_scores_in_bfloat16(batch: TISBatch) -> Float[Tensor, "tokens"]:
    rollout = read(batch, "rollout_log_probs").to(torch.bfloat16)  # fault: half-precision
    return (read(batch, "old_log_probs") - rollout).exp()


def case_026_one_minus_a_mask(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, log_probs * (1 - batch.loss_mask), {})  # fault: dtype


def case_027_promoted_to_float64(log_probs: Live, advantages: Constant) -> Float[Tensor, ""]:  # fault: dtype
    return -(log_probs * advantages.detach()).sum()


def case_041_masked_nan_poisons_the_sum(log_probs: LiveRows, old: Rows, mask: RowMask) -> Float[Tensor, ""]:
    old = old.detach().to(log_probs)  # fault: masked
    ratio = (log_probs.where(mask, 0.0) - old).exp()
    return -(ratio * mask).sum() / mask.sum().clamp(min=1)


def case_042_filled_after_the_exponential(log_probs: LiveRows, old: Rows, mask: RowMask) -> Float[Tensor, ""]:
    fixed = old.detach().to(log_probs).where(mask, 0.0)
    ratio = (log_probs - fixed).exp()  # fault: masked
    return -torch.where(mask, ratio, 0.0).sum() / mask.sum().clamp(min=1)


def case_046_nothing_is_trained(log_probs: LiveRows, mask: RowMask) -> Float[Tensor, ""]:
    return -log_probs.where(mask, 0.0).sum() / mask.sum()  # fault: edge-shape


def case_048_one_sample_has_no_variance(rewards: Fixed[Float[Tensor, "batch"]]) -> Fixed[Float[Tensor, "batch"]]:
    with torch.no_grad():
        centred = rewards - rewards.sum() / max(len(rewards), 1)
        return centred / (rewards.std() + 1e-6)  # fault: edge-shape


def case_050_estimator_that_ignores_the_mask(rewards: Rows, values: Rows, mask: RowMask) -> Rows:
    with torch.no_grad():
        kept = rewards.where(mask, 0.0)
        following = torch.cat([values[:, 1:], values.new_zeros(len(values), 1)], 1)  # fault: masked
        return (kept + 0.9 * following - values.where(mask, 0.0)).where(mask, 0.0)


@loss
def case_054_mean_of_each_micro_batch(log_probs: LiveRows, mask: RowMask) -> Float[Tensor, ""]:  # fault: split
    return -log_probs.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


@loss
def case_056_counted_by_length(batch: PolicyBatch) -> Float[Tensor, ""]:  # fault: split
    log_probs = read(batch, "log_probs")
    total = -(log_probs * read(batch, "advantages", like=log_probs)).sum()
    return total / max(sum(batch.layout.response_lengths), 1)


def case_067_a_field_the_plug_in_does_not_get(batch: PolicyBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    weights = (batch.old_log_probs - batch.rollout_log_probs).exp()  # type: ignore[attr-defined]  # fault: missing-field
    return weighted_sum(batch, -weights * log_probs, {})


def case_079_a_span_of_an_expanded_advantage(advantages: Fixed[Float[Tensor, "batch 1"]]) -> Float[Tensor, "batch 3"]:
    wide = advantages.detach().expand(-1, 3)
    wide[:1, :1] = -9.0  # fault: in-place
    return wide.clone()


def case_080_the_stored_kl_is_scaled(
    kl: Constant, rewards: Fixed[Float[Tensor, "tokens"]]
) -> Fixed[Float[Tensor, "tokens"]]:
    kl *= -0.1  # fault: in-place
    return (kl + rewards).detach()


@dataclass
class LossInputs:
    log_probs: Live
    old_log_probs: Constant
    advantages: Fixed[Float[Tensor, "batch"]]


def a_structure_of_tensors(inputs: LossInputs) -> Float[Tensor, ""]:
    ratio = (inputs.log_probs - inputs.old_log_probs.to(inputs.log_probs)).exp()
    return -(ratio * inputs.advantages).sum()  # fault: broadcast


def a_live_structure(inputs: LossInputs) -> Float[Tensor, ""]:
    ratio = (inputs.log_probs - inputs.old_log_probs.to(inputs.log_probs)).exp()  # fault: live-input
    return -(ratio * inputs.advantages.detach().sum().to(ratio)).sum()
