"""From a record's inputs and parameters to a step of the library: batches, objectives and aggregations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.aggregation import Aggregation
from rollout_contract.objectives import (
    CISPO,
    DPPO,
    GMPO,
    GSPO,
    NLL,
    GSPOToken,
    KLCov,
    Objective,
    PPOClip,
    ProbabilityMask,
)
from rollout_contract.schemas import OffPolicyMaskBatch, PolicyBatch, TISBatch
from tests.conformance.harness import Vector


class Step(OffPolicyMaskBatch, PolicyBatch, TISBatch):
    """Scores of the trainer and of the sampler, and advantages."""


FIELD_OF_ROLE = {"old": "old_log_probs", "behaviour": "rollout_log_probs"}


def mask_of(vector: Vector, shape: torch.Size) -> Tensor:
    """[batch, width] bool; systems that take no mask train every token."""
    return vector.tensor("mask").bool() if vector.has("mask") else torch.ones(shape, dtype=torch.bool)


def step_of(vector: Vector, rows: list[int] | None = None, **fields: Tensor) -> Step:
    """The record's batch. Every column is a response token, and the mask says which are trained.

    ``fields`` stand in for, or replace, the record's own. What a system does not have (the sampler's scores, say) is
    filled with the scores that it does have.
    """
    found = {name: vector.tensor(role) for role, name in FIELD_OF_ROLE.items() if vector.has(role)} | fields
    scores = next(iter(found.values()))
    mask = mask_of(vector, scores.shape)
    for name in FIELD_OF_ROLE.values():
        found.setdefault(name, scores)
    found.setdefault("advantages", advantages_of(vector, mask.shape))
    chosen = list(range(mask.shape[0])) if rows is None else rows
    packed = {name: tensor[chosen].reshape(-1) for name, tensor in found.items()}
    return Step(response_lengths=[mask.shape[1]] * len(chosen), loss_mask=mask[chosen].reshape(-1), **packed)


def advantages_of(vector: Vector, shape: torch.Size) -> Tensor:
    """[batch, width]; one advantage per sample is given to each of its tokens."""
    if not vector.has("advantages"):
        return torch.zeros(shape, dtype=torch.float64)
    found = vector.tensor("advantages")
    return found if found.dim() == 2 else found[:, None].expand(shape)


def bound_of(vector: Vector) -> float | None:
    """The bound of the current policy's log-ratio."""
    clamp = vector.params.get("log_ratio_clamp")
    return None if clamp is None else clamp[1]


def objective_of(vector: Vector) -> Objective:
    params = vector.params
    clip = {"clip_low": params.get("eps_low"), "clip_high": params.get("eps_high")}
    name = params["objective"]
    if name in ("ppo_clip", "gspo"):
        kind = PPOClip if name == "ppo_clip" else GSPO
        average = {"average_advantages": True} if name == "gspo" and vector.system == "areal" else {}
        return kind(**clip, **average, dual_clip=params.get("dual_clip"), log_ratio_bound=bound_of(vector))
    if name == "gspo_token":
        return GSPOToken(**clip, log_ratio_bound=None, log_ratio_cap=bound_of(vector))
    if name == "geo_mean":
        return GMPO(**clip, log_ratio_bound=None)
    if name == "cispo":
        bounds = {"ratio_min": params["ratio_min"] or 0.0, "ratio_max": params["ratio_max"]}
        return CISPO(**bounds, log_ratio_bound=bound_of(vector))
    if name == "kl_cov":
        return KLCov(fraction=params["frac"], coef=params["coef"], log_ratio_bound=bound_of(vector))
    if name == "dppo_tv":
        radii = {"delta_low": params["delta_low"], "delta_high": params["delta_high"]}
        return DPPO(**radii, drift=params["drift"], log_ratio_bound=bound_of(vector))
    if name == "ipo_mask":
        return ProbabilityMask(delta=params["delta"], drift=params["drift"], log_ratio_bound=bound_of(vector))
    return {"nll": NLL()}[name]


def aggregation_of(params: dict[str, Any], mask: Tensor) -> Aggregation:
    """How the system reduces, with the counts of the mask ``mask`` [batch, width] from before any rejection."""
    spec: dict[str, Any] = params.get("aggregation", {"mode": "token_mean", "denominator": "mask_sum"})
    counts = mask.sum(1)
    filled = int((counts > 0).sum())
    least = spec.get("clamp_min") or 1
    if spec["mode"] == "sum":
        return Aggregation(mode="sum")
    if spec["mode"] == "token_mean":
        named = spec["denominator"] in ("mask_sum", "original_mask_sum")
        count = float(counts.sum()) if named else spec["denominator"]
        # A plain sum with the count from before the rejection: "token-mean" would count the tokens that stay.
        return Aggregation(mode="sum", scale=1 / max(count + spec.get("eps", 0.0), least))
    if spec["mode"] == "sum_seq_token_mean":
        return Aggregation(mode="seq-mean-token-mean", scale=filled)
    if spec["mode"] == "seq_mean_token_mean":
        if spec["denominator"] == "batch":
            return Aggregation(mode="seq-mean-token-mean", count_empty=True)
        return Aggregation(mode="seq-mean-token-mean", scale=filled / spec["denominator"])
    raise KeyError(spec["mode"])
