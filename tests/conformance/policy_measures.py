"""Numbers that the trainers report about the policy and its losses, as the library reports them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.corrections import Truncate
from rollout_contract.kernels import importance, kl
from rollout_contract.kernels.trust_region import leaves_region, probability_shift
from rollout_contract.kl import K3
from rollout_contract.losses.entropy import entropy_metrics
from rollout_contract.losses.policy import policy_loss
from rollout_contract.losses.value import CriticError
from rollout_contract.metrics import Metrics
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import PPOClip
from rollout_contract.objectives.reverse_kl import RolloutReverseKL
from rollout_contract.schemas import ObservedEntropyBatch, ScoredKLBatch, ValueBatch
from tests.conformance import policy_objectives
from tests.conformance.correction_rules import opsm_keep, rule_of
from tests.conformance.harness import Vector, batch_inputs
from tests.conformance.measures import Measure, Rows, per_sequence, reduced
from tests.conformance.rollout_steps import (
    Step,
    aggregation_of,
    log_probs_of,
    mask_of,
    objective_of,
    packed_layout,
    packed_scores,
    step_of,
    tensor_of,
)

# -- the policy ----------------------------------------------------------------------------------------------------


def bound_step(vector: Vector, rows: Rows) -> Step:
    chosen = slice(None) if rows is None else rows
    return step_of(vector, rows).bind(log_probs=log_probs_of(vector)[chosen].reshape(-1).requires_grad_())


def policy(name: str) -> Measure:
    def measure(vector: Vector) -> float:
        objective = objective_of(vector) if "objective" in vector.params else PPOClip()
        return reduced(vector, lambda rows: objective.terms(bound_step(vector, rows)).metrics[name].compute())

    return measure


def policy_extreme(name: str, pick: Callable[[list[float]], float]) -> Measure:
    def measure(vector: Vector) -> float:
        objective = objective_of(vector)
        return pick(per_sequence(vector, lambda row: objective.terms(bound_step(vector, row)).metrics[name].compute()))

    return measure


def moved_step(vector: Vector, rows: Rows) -> Step:
    """The current policy in the place of the trainer's scores, and the old one in that of the sampler."""
    return step_of(vector, rows, old_log_probs=log_probs_of(vector), rollout_log_probs=tensor_of(vector, "old"))


def moved(name: str) -> Measure:
    """Statistics of the current policy's ratio."""
    return lambda vector: reduced(vector, lambda rows: mismatch_metrics(moved_step(vector, rows))[name].compute())


def clipped_ratio(statistic: Callable[[Tensor, Tensor], metrics.Metric]) -> Measure:
    """Of the ratio after the clip: it is what a truncation of the same ratio gives."""

    def measure(vector: Vector) -> float:
        params = vector.params
        if "eps_low" in params:
            low, high = 1 - params["eps_low"], 1 + params["eps_high"]
        else:
            low, high = params["ratio_min"], params["ratio_max"]
        step = moved_step(vector, None)
        weights = Truncate(low=low, high=high, log_ratio_bound=policy_objectives.bound(params))(step).weights
        assert weights is not None
        return statistic(weights, step.loss_mask).compute()

    return measure


def effective_samples(vector: Vector) -> float:
    counts = tensor_of(vector, "mask").sum(1).tolist()
    ess = per_sequence(vector, lambda row: mismatch_metrics(moved_step(vector, row))["ess"].compute())
    # A sequence without trained tokens has nothing to average: here 1, there 0.
    times = [n if vector.params.get("times_tokens") else float(n > 0) for n in counts]
    return math.fsum(number * factor for number, factor in zip(ess, times, strict=True))


def hits(where: Callable[[Vector, Tensor, Tensor], Tensor]) -> Measure:
    """Share of the trained tokens with a property of their log-ratio and advantage."""

    def measure(vector: Vector) -> float:
        step = moved_step(vector, vector.params.get("rows"))
        found = where(vector, step.old_log_probs - step.rollout_log_probs, step.advantages)
        return metrics.fraction(found, step.loss_mask).compute()

    return measure


def raised_above_cap(vector: Vector, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    return importance.above(log_ratio, math.log(vector.params["ratio_max"])) & (advantages > 0)


def raised_outside_clip(vector: Vector, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    return _outside_clip(vector, log_ratio) & (advantages > 0)


def lowered_outside_clip(vector: Vector, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    return _outside_clip(vector, log_ratio) & (advantages < 0)


def _outside_clip(vector: Vector, log_ratio: Tensor) -> Tensor:
    low, high = -vector.params["eps_low"], vector.params["eps_high"]
    return importance.below(log_ratio, low) | importance.above(log_ratio, high)


def opsm_fraction(vector: Vector) -> float:
    """Dropped positions of each sequence, tool tokens included, over its trained tokens."""
    lengths = torch.tensor(batch_inputs()["lengths"])
    inside = torch.arange(tensor_of(vector, "mask").shape[1]) < lengths[:, None]
    dropped = (~opsm_keep(vector) & inside).sum(1)
    return float((dropped / tensor_of(vector, "mask").sum(1).clamp(min=1)).sum())


def sampled_entropy(vector: Vector) -> float:
    """Minus the mean log-prob under the current policy, by importance from the sampler."""
    step = bound_step(vector, None)
    log_probs = step.log_probs.detach()
    ratio = (log_probs - step.rollout_log_probs).exp()
    return metrics.mean(-ratio * log_probs, step.loss_mask).compute()


# -- prime-rl: what was dropped, and how far it was ----------------------------------------------------------------


def prime(name: str) -> Measure:
    def measure(vector: Vector) -> float:
        step = bound_step(vector, vector.params["rows"])
        if vector.has("teacher"):
            return teacher_metrics(vector)[name].compute()
        if name in ("dropped_fraction", "dropped_fraction_low", "dropped_fraction_high", "nll"):
            return objective_of(vector).terms(step).metrics[name].compute()
        dropped = dropped_tokens(vector, step)
        distance = kl.k3(step.rollout_log_probs - step.log_probs.detach())
        mask = step.loss_mask
        return {
            "mismatch_k3_dropped": metrics.mean(distance, mask & dropped),
            "mismatch_k3_kept": metrics.mean(distance, mask & ~dropped),
            "positive": metrics.fraction(step.advantages > 0, mask & dropped),
            "negative": metrics.fraction(step.advantages < 0, mask & dropped),
        }[name].compute()

    return measure


def dropped_tokens(vector: Vector, step: Step) -> Tensor:
    shift = probability_shift(step.log_probs.detach(), step.rollout_log_probs)
    if vector.params["objective"] == "ipo_mask":
        return shift.abs() > vector.params["delta"]
    radii = vector.params["delta_low"], vector.params["delta_high"]
    low, high = leaves_region(shift, shift.abs(), step.advantages, *radii)
    if vector.params["zero_adv"] == "low_rule":
        low = low | ((step.advantages == 0) & (shift < -radii[0]))
    return low | high


def teacher_metrics(vector: Vector) -> Metrics:
    rows = vector.params["rows"]
    step = bound_step(vector, rows)
    reads = RolloutReverseKL.reads

    class WithTeacher(Step, reads):  # type: ignore[misc, valid-type]
        """Adds the teacher's scores."""

    wider = step.extend(WithTeacher, teacher_log_probs=tensor_of(vector, "teacher")[rows].reshape(-1))
    return RolloutReverseKL(delta_low=vector.params["delta_low"], drift=vector.params["drift"]).terms(wider).metrics


def teacher_gap(vector: Vector) -> float:
    """prime-rl reports teacher minus student."""
    return -teacher_metrics(vector)["reverse_kl"].compute()


# -- losses --------------------------------------------------------------------------------------------------------


class ReferenceStep(Step, ScoredKLBatch):
    """Adds the reference policy."""


def reference_kl(vector: Vector) -> float:
    estimator = policy_objectives.kl_of(vector.params["kl"]) if "kl" in vector.params else K3()

    def numbers(rows: Rows) -> float:
        chosen = slice(None) if rows is None else rows
        reference = tensor_of(vector, "reference")[chosen].reshape(-1)
        step = bound_step(vector, rows).extend(ReferenceStep, ref_log_probs=reference)
        return estimator.terms(step).metrics["kl"].compute()

    return reduced(vector, numbers)


def full_policy_loss(vector: Vector) -> float:
    step = step_of(vector)
    step = step.corrected(rule_of(vector.params["correction"])(step))
    step = step.weighted(aggregation_of(vector.params, mask_of(vector, step.loss_mask.shape)))
    live = log_probs_of(vector).reshape(-1).requires_grad_()
    return policy_loss(step.bind(log_probs=live), objective_of(vector)).metrics["policy_loss"].compute()


def full_entropy(vector: Vector) -> float:
    layout = packed_layout(vector)
    mask, entropy = layout.pack(mask_of(vector, torch.Size())), packed_scores(vector).entropy

    def numbers(rows: Rows) -> float:
        batch = ObservedEntropyBatch(response_lengths=layout.response_lengths, loss_mask=mask)
        batch = batch.bind(observed_entropy=entropy).select(range(len(batch)) if rows is None else rows)
        return entropy_metrics(batch)["entropy"].compute()

    return reduced(vector, numbers)


def critic(name: str) -> Measure:
    def measure(vector: Vector) -> float:
        mask = mask_of(vector, torch.Size())
        if vector.has("packed_values"):
            layout = packed_layout(vector)
            predictions = layout.response_from_predictions(tensor_of(vector, "packed_values")[:, 0])
            values = layout.pad(predictions, width=mask.shape[1])
        else:
            values = tensor_of(vector, "values")

        def numbers(rows: Rows) -> float:
            chosen = list(range(mask.shape[0])) if rows is None else rows
            batch = ValueBatch(
                response_lengths=[mask.shape[1]] * len(chosen),
                loss_mask=mask[chosen].reshape(-1),
                values=tensor_of(vector, "old_values")[chosen].reshape(-1),
                returns=tensor_of(vector, "returns")[chosen].reshape(-1),
            ).bind(value_predictions=values[chosen].reshape(-1).requires_grad_())
            return CriticError(clip=vector.params["clip"]).terms(batch).metrics[name].compute()

        return reduced(vector, numbers)

    return measure
