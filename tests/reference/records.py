"""Reads a record of a trainer as the reference takes it."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.harness import Vector, batch_inputs
from tests.reference import aggregation, kl
from tests.reference.scalars import Rows, gradients, numbers, rows, weighted_sum

Arguments = dict[str, Any]


def given(vector: Vector, role: str) -> list[Any]:
    """The record's input for a role, as the nested list that it is."""
    found: list[Any] = batch_inputs()["tensors"][vector.roles[role]]
    return found


def fixed(vector: Vector, role: str) -> Rows:
    values = given(vector, role)
    if not isinstance(values[0], list):
        values = [[value] * len(mask) for value, mask in zip(values, given(vector, "mask"), strict=True)]
    return rows(values)


def mask_of(vector: Vector) -> list[list[bool]]:
    mask = [[bool(m) for m in entries] for entries in given(vector, "mask")]
    selected = vector.params.get("rows")
    kept = range(len(mask)) if selected is None else selected
    dropped = vector.params.get("dropped_rows", ())
    return [[m and i in kept and i not in dropped for m in entries] for i, entries in enumerate(mask)]


def clamp_of(params: Arguments, side: int = 1) -> float | None:
    bounds = params.get("log_ratio_clamp")
    return None if bounds is None else bounds[side]


def weights_of(vector: Vector, mask: list[list[bool]], aggregate: Arguments) -> list[list[float]]:
    """Per-token weights; the additive epsilons of some trainers are below the tolerance of their records."""
    denominator = aggregate.get("denominator")
    number = denominator if isinstance(denominator, int | float) else None
    scale = aggregate.get("scale", 1)
    match aggregate["mode"]:
        case "sum" | "none":
            found = aggregation.token_sum(mask)
        case "token_mean":
            found = aggregation.token_mean(mask, denominator=number)
        case "seq_mean_token_mean":
            empty = {"count_empty": denominator != "nonempty"}
            found = aggregation.seq_mean_token_mean(mask, denominator=number, **empty)
        case "sum_seq_token_mean":
            found = aggregation.seq_mean_token_mean(mask, denominator=1)
        case "seq_mean_token_sum":
            empty = {"count_empty": denominator != "nonempty"}
            found = aggregation.seq_mean_token_sum(mask, denominator=number, **empty)
        case "token_sum_over_const":
            found = aggregation.constant(mask, divisor=aggregate["constant"])
        case "batch_mean":
            found = aggregation.seq_mean_token_mean(mask)
        case "seq_loss_times_length_mean":
            found = aggregation.seq_mean_token_sum(mask)
        case "sum_group_token_mean":
            groups = given(vector, "index")
            found = [[w * len(set(groups)) for w in ws] for ws in aggregation.prompt_mean(mask, groups)]
        case other:
            raise NotImplementedError(other)
    return [[scale * w for w in ws] for ws in found]


def kl_losses(vector: Vector, log_probs: Rows, mask: list[list[bool]], params: Arguments) -> Rows:
    importance = {
        "none": None,
        "ratio": fixed(vector, "old") if vector.has("old") else None,
        "behaviour_ratio": fixed(vector, "behaviour") if vector.has("behaviour") else None,
        "score": [[value.detach() for value in entries] for entries in log_probs],
    }[params["weight"]]
    return kl.kl(
        log_probs,
        fixed(vector, "reference"),
        mask,
        estimator=params["estimator"].replace("low_var_kl", "k3"),
        input_clamp=params["in_clamp"],
        output_clamp=params["out_clamp"],
        straight_through=bool(params.get("straight_through")),
        log_weights=None if importance is None else kl.log_ratios(log_probs, importance),
        detach_weight_where_clamped=vector.system == "nemorl",
    )


def check(vector: Vector, losses: Rows, weights: list[list[float]], live: Rows) -> None:
    mode = vector.params["aggregation"]["mode"]
    loss = weighted_sum(losses, weights)
    value = torch.tensor(numbers(losses), dtype=torch.float64) if mode == "none" else loss.detach()
    vector.check(value, torch.tensor(gradients(loss, live), dtype=torch.float64))
