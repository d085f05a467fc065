"""From a record's parameters to the library's correction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rollout_contract.corrections import Correction, CorrectionRule, IcePop, Normalize, Reject, Truncate
from rollout_contract.objectives import OPSM, Objective, ProximalOPSM
from tests.conformance.harness import Vector
from tests.conformance.rollout_steps import Step, mask_of, objective_of, step_of, tensor_of


def loss_objective(vector: Vector) -> Objective:
    objective = objective_of(vector)
    delta = vector.params.get("opsm_delta")
    if delta is None:
        return objective
    anchors = {"behaviour": OPSM, "old": ProximalOPSM}
    return anchors[vector.params["opsm_anchor"]](objective=objective, delta=delta)


def loss_correction(vector: Vector, step: Step) -> Correction:
    spec: dict[str, Any] = vector.params["correction"]
    if spec["type"] == "given":
        return Correction(step, weights=tensor_of(vector, "is_weights").reshape(-1))
    return areal_rule(spec)(step) if spec["type"] == "areal" else rule_of(spec)(step)


def rule_of(spec: dict[str, Any]) -> CorrectionRule:
    """The correction of every system but AReaL, by the name that the records have for it."""
    bound = {"log_ratio_bound": spec.get("log_clamp")}
    between = {"low": spec.get("low"), "high": spec.get("high")}
    sequence = {
        "seq_mask": "sequence-mean",
        "seq_keep_geometric": "sequence-mean",
        "seq_keep_product": "sequence-sum",
        "seq_keep_all_tokens": "sequence-every",
    }
    kind = spec["type"]
    if kind in sequence:
        kept = Reject.model_validate({"level": sequence[kind], **between, **bound})
        return Truncate(high=None, **bound) & kept if kind == "seq_mask" else kept
    rules = {
        "clamp": lambda: Truncate(**between, **bound),
        "icepop": lambda: IcePop(**between, **bound),
        "raw": lambda: Truncate(high=None, **bound),
        "seq_product": lambda: Truncate(high=spec["high"], level="sequence", **bound),
        "seq_product_raw": lambda: Truncate(high=None, level="sequence", **bound),
        "token_keep": lambda: Reject(**between, **bound),
        "token_keep_then_clamp": lambda: Reject(**between, **bound) & Truncate(high=spec["cap"], **bound),
    }
    return rules[kind]()


def areal_rule(spec: dict[str, Any]) -> CorrectionRule:
    """AReaL's metric bounds decide which weights are clamped, or which tokens leave the mask.

    Its k1 is old - rollout, the opposite of k1 here and the log of the ratio, whose bounds are then exponentials. Its
    k3 is the one in which the trainer's policy is the sampler.
    """
    low, high, metric = spec["low"], spec["high"], spec["metric"]
    level = "token" if spec["level"] == "token" else f"sequence-{spec['agg']}"
    statistic = {"ratio": "ratio", "kl_k1": "ratio", "kl_k2": "k2", "kl_k3": "reverse_k3"}[metric]
    limits = [None if b is None else math.exp(b) for b in (low, high)] if metric == "kl_k1" else [low, high]
    outside = Reject.model_validate(
        {"statistic": statistic, "level": level, "low": limits[0], "high": limits[1], "log_ratio_bound": None}
    )
    weight_level = "geometric" if spec["level"] == "sequence" and metric == "ratio" else "token"
    if spec["action"] == "mask":
        return Truncate(high=None, level=weight_level, log_ratio_bound=None) & outside
    only = None if spec["level"] == "token" else outside
    return Truncate(high=high, low=low, level=weight_level, log_ratio_bound=None, only=only)


def weight_rule(params: dict[str, Any]) -> CorrectionRule:
    bounds = {
        "truncate": {"high": params["high"]},
        "truncate_after_mask": {"high": params["high"]},
        "clip": {"high": params["high"], "low": params["low"]},
        "mask": {"high": None},
    }[params["mode"]]
    rule = Truncate.model_validate({**bounds, "level": params["level"], "log_ratio_bound": params["log_clamp"]})
    return Normalize(rule=rule, per=params["normalize_by"]) if params["batch_normalize"] else rule


def mask_rule(params: dict[str, Any]) -> CorrectionRule:
    if params["what"] == "verl_rejection_mask":
        return verl_rejection(params)
    # The bound of the aggregated log-ratio cannot matter, since it lies far outside the range that is kept.
    level = {"token": "token", "sequence": "sequence-sum", "geometric": "sequence-mean"}[params["level"]]
    between = {"low": params["low"], "high": params["high"]}
    rule: CorrectionRule = Reject.model_validate({"level": level, **between, "log_ratio_bound": None})
    if params.get("veto") is None:
        return rule
    return rule & Reject(level="sequence-every", low=params["veto"], log_ratio_bound=None)


def verl_rejection(params: dict[str, Any]) -> CorrectionRule:
    """Options such as "seq_mean_k3", joined by commas; the bounds of k1 are given as ratios."""
    rules: list[CorrectionRule] = []
    bounds = [(params["low"], params["high"]), (params.get("low2"), params.get("high2"))]
    for option, (low, high) in zip(params["option"].split(","), bounds, strict=False):
        level, statistic = option.rsplit("_", 1)
        if statistic == "k1":
            low, high = (None if ratio is None else math.log(ratio) for ratio in (low, high))
        rules.append(
            Reject.model_validate(
                {
                    "statistic": statistic,
                    "level": level.replace("seq_", "sequence-"),
                    "low": low,
                    "high": high,
                    "log_ratio_bound": params["log_clamp"],
                }
            )
        )
    return rules[0] if len(rules) == 1 else rules[0] & rules[1]


def opsm_keep(vector: Vector) -> Tensor:
    """[batch, width] bool. These systems judge tool tokens too, by the advantages that lie there."""
    mask = mask_of(vector, tensor_of(vector, "logprob").shape)
    rule = ProximalOPSM(delta=vector.params["delta"])
    step = step_of(vector).bind(log_probs=tensor_of(vector, "logprob").reshape(-1).requires_grad_())
    kept = rule.keep(step).reshape(mask.shape)
    stays = step.layout.sum((~rule.keep(all_bad(vector))).double()) == 0
    return torch.where(mask, kept, (tensor_of(vector, "advantages") >= 0) | stays[:, None])


def all_bad(vector: Vector) -> Step:
    """The same step with negative advantages, where a sample that has moved too far loses every trained token."""
    shape = tensor_of(vector, "logprob").shape
    step = step_of(vector, advantages=-torch.ones(shape, dtype=torch.float64))
    return step.bind(log_probs=tensor_of(vector, "logprob").reshape(-1).requires_grad_())
