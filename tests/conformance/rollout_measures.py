"""Numbers that the trainers report about the sampler's mismatch and its corrections, as the library reports them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.corrections import Correction, IcePop, Reject, Truncate
from rollout_contract.kernels import importance
from rollout_contract.kl import LowVarKL
from rollout_contract.mismatch import mismatch_metrics
from tests.conformance.correction_rules import rule_of, verl_rejection
from tests.conformance.harness import Vector
from tests.conformance.measures import Measure, Rows, reduced
from tests.conformance.rollout_steps import (
    Step,
    step_of,
    tensor_of,
)

# -- the sampler's mismatch ----------------------------------------------------------------------------------------


def mismatch(name: str) -> Measure:
    return lambda vector: reduced(vector, lambda rows: mismatch_metrics(step_of(vector, rows))[name].compute())


def reverse_mismatch(name: str) -> Measure:
    """With trainer and sampler exchanged."""

    def measure(vector: Vector) -> float:
        scores = {"old_log_probs": tensor_of(vector, "behaviour"), "rollout_log_probs": tensor_of(vector, "old")}
        return reduced(vector, lambda rows: mismatch_metrics(step_of(vector, rows, **scores))[name].compute())

    return measure


def low_variance_kl(vector: Vector) -> float:
    """miles' distance of sampler and trainer: k3, as the KL loss estimates it with its clamps."""

    def numbers(rows: Rows) -> float:
        step = step_of(vector, rows)
        return metrics.mean(LowVarKL().value(step.rollout_log_probs - step.old_log_probs), step.loss_mask).compute()

    return reduced(vector, numbers)


# -- corrections ---------------------------------------------------------------------------------------------------


def corrected(*names: str) -> Measure:
    """The sum of metrics of a token-level correction."""

    def measure(vector: Vector) -> float:
        bounds = {"low": vector.params["low"], "high": vector.params["high"], "log_ratio_bound": None}
        rule = {"clamp": Truncate, "icepop": IcePop}[vector.params["type"]].model_validate(bounds)
        prefix = {"clamp": "truncate", "icepop": "icepop"}[vector.params["type"]]

        def numbers(rows: Rows) -> float:
            found = rule(step_of(vector, rows)).metrics
            return math.fsum(found[f"{prefix}/{name}"].compute() for name in names)

        return reduced(vector, numbers)

    return measure


def out_of_bounds(vector: Vector) -> float:
    spec = vector.params["correction"]
    found = rule_of(spec)(step_of(vector)).metrics
    if spec["type"] == "seq_mask":
        return found["reject/ratio/sequence-mean/rejected"].compute()
    prefix = {"clamp": "truncate", "icepop": "icepop"}[spec["type"]]
    return found[f"{prefix}/fraction_high"].compute() + found[f"{prefix}/fraction_low"].compute()


def rejected_tokens(vector: Vector) -> float:
    step = step_of(vector)
    mask = verl_rejection(vector.params)(step).mask
    assert mask is not None
    return metrics.fraction(~mask, step.loss_mask).compute()


def rejection(level: str, name: str) -> Measure:
    def measure(vector: Vector) -> float:
        bounds = {"low": vector.params["low"], "high": vector.params["high"]}
        rule = Reject.model_validate({"level": level, **bounds, "log_ratio_bound": vector.params["log_clamp"]})
        return rule(step_of(vector)).metrics[f"reject/ratio/{level}/{name}"].compute()

    return measure


def verl_truncation(vector: Vector, low: float | None = None, high: float | None = None) -> tuple[Step, Correction]:
    params = vector.params
    rule = Truncate(low=low, high=high, level=params["level"], log_ratio_bound=params["log_clamp"])
    step = step_of(vector)
    return step, rule(step)


def verl_ratio(name: str) -> Measure:
    """Of the ratios of the level itself: tokens, or sequences."""

    def measure(vector: Vector) -> float:
        _, correction = verl_truncation(vector, 1 / vector.params["high"], vector.params["high"])
        return correction.metrics[f"truncate/{name}"].compute()

    return measure


def verl_weights(statistic: Callable[[Tensor, Tensor], metrics.Metric], clamped: bool) -> Measure:
    """Of the weights of all trained tokens, which a sequence's tokens share; verl clamps them for spread and ESS."""

    def measure(vector: Vector) -> float:
        high = vector.params["high"]
        step, correction = verl_truncation(vector, 1 / high, high) if clamped else verl_truncation(vector)
        assert correction.weights is not None
        return statistic(correction.weights, step.loss_mask).compute()

    return measure


def verl_sequences(statistic: Callable[[Vector, Tensor, Tensor], float]) -> Measure:
    """Of the mean weight of each sequence."""

    def measure(vector: Vector) -> float:
        step, correction = verl_truncation(vector)
        assert correction.weights is not None
        means = step.layout.mean(correction.weights, step.loss_mask)
        return statistic(vector, means, torch.ones_like(means, dtype=torch.bool))

    return measure


def unbiased_std(vector: Vector, values: Tensor, present: Tensor) -> float:
    count = values.numel()
    return metrics.std(values, present).compute() * math.sqrt(count / max(count - 1, 1))


def skyrl_positions(statistic: Callable[[Vector, Tensor, Tensor], float]) -> Measure:
    """SkyRL takes spread and extremes over all positions of the padded batch; a masked one counts as 0."""

    def measure(vector: Vector) -> float:
        weights = Truncate(high=None, log_ratio_bound=vector.params["log_clamp"])(step_of(vector)).weights
        assert weights is not None
        return statistic(vector, weights, torch.ones_like(weights, dtype=torch.bool))

    return measure


def capped_tokens(vector: Vector) -> float:
    """Tokens above the cap, among those that a rejection before it has left."""
    step, params = step_of(vector), vector.params
    if "cap" in params:
        step = step.corrected(Reject(low=params["low"], high=params["high"])(step))
    cap = params.get("cap", params["high"])
    return Truncate(high=cap)(step).metrics["truncate/fraction_high"].compute()


def capped_sequences(vector: Vector) -> float:
    rule = Truncate(high=vector.params["high"], level="sequence", log_ratio_bound=vector.params["log_clamp"])
    return rule(step_of(vector)).metrics["truncate/fraction_high"].compute()


def of(statistic: Callable[[Tensor, Tensor], metrics.Metric]) -> Callable[[Vector, Tensor, Tensor], float]:
    return lambda vector, values, present: statistic(values, present).compute()


def largest_deviation(vector: Vector, values: Tensor, present: Tensor) -> float:
    return metrics.maximum((values - 1).abs(), present).compute()


def share_high(vector: Vector, values: Tensor, present: Tensor) -> float:
    return metrics.fraction(importance.above(values, vector.params["high"]), present).compute()


def share_low(vector: Vector, values: Tensor, present: Tensor) -> float:
    return metrics.fraction(importance.below(values, 1 / vector.params["high"]), present).compute()
