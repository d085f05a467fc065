"""Correct losses, corrections and estimators on packed batches, in the manner of the trainers that use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract import (
    Fixed,
    FixedTensor,
    KLBatch,
    Loss,
    Metadata,
    OPDBatch,
    PerSample,
    PolicyBatch,
    RolloutBatch,
    TISBatch,
    Trainable,
    policy_loss,
    unbound,
)
from rollout_contract import metrics as measures
from rollout_contract.check import loss
from rollout_contract.corrections import Correction, Reject, Truncate
from rollout_contract.kl import K2
from rollout_contract.losses.inputs import read
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.metrics import Metrics
from rollout_contract.objectives import PPOClip
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.schemas import EntropyBatch, RewardBatch, ValueBatch


class Step(PolicyBatch, TISBatch, KLBatch, EntropyBatch):
    """What a GRPO step trains on, with fields of its own."""

    temperature: Metadata[float] = 1.0
    source: PerSample[str] = unbound()
    difficulty: PerSample[int]
    stop_reason: Metadata[str]
    versions: Fixed[Int[Tensor, "tokens"]]
    baseline: Fixed[Float[Tensor, "groups"]]
    input_ids: Fixed[Int[Tensor, "sequence"]]
    teacher_topk_log_probs: Fixed[Float[Tensor, "tokens topk"]]
    is_tool: Fixed[Bool[Tensor, "tokens"]] = unbound()


def whole_step(batch: Step) -> Loss:
    """Policy, KL and entropy in one sum."""
    entropy = weighted_sum(batch, read(batch, "entropy"), {})
    return policy_loss(batch, PPOClip(clip_high=0.28)) + 0.01 * kl_loss(batch, K2()) - 0.001 * entropy


clip_higher = partial(policy_loss, objective=PPOClip(clip_low=0.2, clip_high=0.28))
truncate = Truncate(high=3.0)
reject = Reject(high=2.0)


def miles_policy(batch: PolicyBatch) -> Loss:
    """Masked inputs, a bounded log-ratio, a clip fraction that merges."""
    log_probs = read(batch, "log_probs")
    difference = (log_probs - read(batch, "old_log_probs", like=log_probs)).clamp(-20.0, 20.0)
    advantages = read(batch, "advantages", like=log_probs)
    ratio = difference.exp()
    terms = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    hits = terms.detach() > -ratio.detach() * advantages
    found = {"clip_fraction": measures.fraction(hits, batch.loss_mask)}
    return weighted_sum(batch, terms, found, "multiplies")


@loss
def prime_rl_default(batch: PolicyBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """A mask on the difference of probabilities, and drift."""
    log_probs = read(batch, "log_probs")
    old = read(batch, "old_log_probs", like=log_probs)
    advantages = read(batch, "advantages", like=log_probs)
    moved = (log_probs.exp() - old.exp()).detach()
    kept = ~((moved > 0.2) & (advantages > 0)) & ~((moved < -0.2) & (advantages < 0))
    ratio = (log_probs - old).exp()
    terms = -kept.to(ratio) * advantages * ratio + 1e-3 * (log_probs - old).square()
    weights = read(batch, "loss_weights", like=log_probs)
    return (weights * terms).sum(), {"is_masked": (~kept & batch.loss_mask).sum()}


def slime_cispo(batch: PolicyBatch) -> Loss:
    """A detached, clipped ratio times the log-prob."""
    log_probs = read(batch, "log_probs")
    ratio = (log_probs - read(batch, "old_log_probs", like=log_probs)).exp().detach().clamp(0.8, 1.2)
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs) * log_probs, {})


def tinker_importance_sampling(batch: TISBatch, advantages: Fixed[Float[Tensor, "tokens"]]) -> Loss:
    """The ratio against the sampler; the trainer's own old scores give a metric alone."""
    log_probs = read(batch, "log_probs")
    rollout = read(batch, "rollout_log_probs", like=log_probs)
    kept = advantages.detach().to(log_probs).where(batch.loss_mask, 0.0)
    mismatch = read(batch, "old_log_probs", like=log_probs) - rollout
    found = {"mismatch": measures.mean(mismatch.abs(), batch.loss_mask)}
    return weighted_sum(batch, -(log_probs - rollout).exp() * kept, found)


def gspo_by_hand(batch: PolicyBatch) -> Loss:
    """A mean per sample, by the layout."""
    log_probs = read(batch, "log_probs")
    difference = log_probs - read(batch, "old_log_probs", like=log_probs)
    per_sample = batch.layout.mean(difference, batch.loss_mask)
    ratio = batch.layout.expand(per_sample.exp())
    return weighted_sum(batch, -ratio * read(batch, "advantages", like=log_probs), {})


def value_mse(batch: ValueBatch) -> Loss:
    """The unclipped value loss, and how well the old values explained the returns."""
    predictions = read(batch, "value_predictions")
    returns = read(batch, "returns", like=predictions)
    residual = returns - read(batch, "values", like=predictions)
    found = {"residual": measures.std(residual, batch.loss_mask)}
    return weighted_sum(batch, (predictions - returns).square(), found)


def opd_advantage(batch: OPDBatch) -> FixedTensor:
    """Minus the sampled reverse KL, with the teacher brought to the batch."""
    with torch.no_grad():
        student = read(batch, "old_log_probs")
        return read(batch, "teacher_log_probs", like=student) - student


def rloo_by_hand(batch: RewardBatch) -> FixedTensor:
    """Leave-one-out within groups, by an explicit outer comparison."""
    with torch.no_grad():
        rewards = read(batch, "rewards")
        index = batch.layout.group_index(batch.device)
        same = (index[:, None] == index[None, :]).to(rewards)
        count = same.sum(1)
        others = (same @ rewards - rewards) / (count - 1).clamp(min=1)
        return batch.layout.expand(torch.where(count > 1, rewards - others, 0.0)).where(batch.loss_mask, 0.0)


def custom_tis(batch: TISBatch) -> Correction:
    """Token weights truncated at 2; what the rollouts never drew enough of is rejected."""
    difference = read(batch, "old_log_probs") - read(batch, "rollout_log_probs", like=batch.old_log_probs)
    weights = difference.clamp(-20.0, 20.0).exp()
    found = Metrics({"tis": measures.mean(weights, batch.loss_mask)})
    return Correction(batch, weights=weights.clamp(max=2.0), mask=(weights > 0.1) & batch.loss_mask, metrics=found)


def sampled_kl(batch: KLBatch) -> dict[str, measures.Metric]:
    """Metrics alone."""
    difference = (read(batch, "log_probs") - read(batch, "ref_log_probs", like=batch.log_probs)).detach()
    return {"k1": measures.mean(difference, batch.loss_mask), "worst": measures.maximum(difference, batch.loss_mask)}


class QuadraticPenalty(Objective):
    """A plug-in objective."""

    name = "quadratic_penalty"
    formula = "-r A + c (l - l_old)^2"
    paper = ""
    known_as = MappingProxyType({})
    reads = PolicyBatch
    coefficient: float = 0.1

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        difference = log_probs - read(batch, "old_log_probs", like=log_probs)
        terms = -difference.exp() * read(batch, "advantages", like=log_probs)
        return Terms(terms + self.coefficient * difference.square(), Metrics())


strong_penalty = QuadraticPenalty(coefficient=1.0)


@loss
def packed_negative_log_likelihood(
    log_probs: Trainable[Float[Tensor, "tokens"]], weights: Fixed[Float[Tensor, "tokens"]]
) -> Float[Tensor, ""]:
    """Weights that were computed from the whole step make a sum the right thing."""
    return -(log_probs * weights.detach().to(log_probs)).sum()


def entropy_of(logits: Trainable[Float[Tensor, "tokens vocab"]]) -> Trainable[Float[Tensor, "tokens"]]:
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def clipped_rewards(batch: RewardBatch, low: float = -1.0, high: float = 1.0) -> Float[FixedTensor, "batch"]:
    with torch.no_grad():
        return read(batch, "rewards").clamp(low, high)


def merged(batch: RolloutBatch) -> Int[Tensor, "batch"]:
    """Trained tokens of each sample."""
    return batch.layout.sum(batch.loss_mask.to(torch.float64)).long()


# -- structures of tensors -----------------------------------------------------------------------------------------


@dataclass
class LossInputs:
    """What prime-rl hands to a custom loss."""

    trainer_logprobs: Trainable[Float[Tensor, "tokens"]]
    inference_logprobs: Fixed[Float[Tensor, "tokens"]]
    advantages: Fixed[Float[Tensor, "tokens"]]
    loss_mask: Bool[Tensor, "tokens"]
    scale: float


class Scores(NamedTuple):
    teacher: Fixed[Float[Tensor, "tokens"]]
    student: Trainable[Float[Tensor, "tokens"]]


class Sample(TypedDict):
    log_probs: Trainable[Float[Tensor, "batch time"]]
    mask: Fixed[Bool[Tensor, "batch time"]]


def custom_loss_of_inputs(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    log_probs = inputs.trainer_logprobs.where(inputs.loss_mask, 0.0)
    old, advantages = (
        x.detach().to(log_probs).where(inputs.loss_mask, 0.0) for x in (inputs.inference_logprobs, inputs.advantages)
    )
    return inputs.scale * -((log_probs - old).exp() * advantages).sum(), {"mismatch": (log_probs - old).detach().sum()}


def distance(scores: Scores) -> Float[Tensor, ""]:
    return (scores.student - scores.teacher.detach().to(scores.student)).square().sum()


def likelihood(sample: Sample) -> Float[Tensor, ""]:
    return -sample["log_probs"].where(sample["mask"], 0.0).sum()
