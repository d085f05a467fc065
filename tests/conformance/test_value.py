"""Every value-loss record of every system, value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.aggregation import Aggregation
from rollout_contract.layout import Layout
from rollout_contract.losses.value import CriticError, value_loss
from rollout_contract.schemas import ValueBatch
from tests.conformance.harness import Vector, vectors


def aggregation(params: dict[str, Any], mask: Tensor) -> Aggregation:
    """The record's way to one number. Guards against an empty denominator change nothing here but rounding."""
    spec = params["aggregation"]
    if spec["mode"] == "token_mean":
        denominator = spec["denominator"]
        count = float(mask.sum()) if isinstance(denominator, str) else float(denominator)
        return Aggregation(mode="sum", scale=1.0 / (count + spec.get("eps", 0.0)))
    if spec["mode"] == "sum_seq_token_mean":
        return Aggregation(mode="seq-mean-token-mean", count_empty=True, scale=float(mask.shape[0]))
    assert spec["mode"] == "seq_mean_token_mean"
    return Aggregation(mode="seq-mean-token-mean", count_empty=spec["denominator"] == "batch")


def critic_error(params: dict[str, Any]) -> CriticError:
    huber = params["huber_delta"] if params.get("loss") == "huber" else None
    return CriticError(clip=params["clip"], half=params["half"], huber_delta=huber)


def layout_of(vector: Vector, mask: Tensor) -> Layout:
    """Real lengths where the record packs prompts and responses; else every column is a response token."""
    if not vector.has("lengths"):
        return Layout([mask.shape[1]] * mask.shape[0])
    lengths = vector.tensor("lengths").tolist()
    return Layout(lengths, prompt_lengths=[vector.params["prompt_len"]] * len(lengths))


@pytest.mark.parametrize("vector", vectors("value"), ids=lambda vector: vector.id)
def test_value(vector: Vector) -> None:
    mask = vector.tensor("mask").bool()
    layout = layout_of(vector, mask)
    step = ValueBatch(
        response_lengths=layout.response_lengths,
        loss_mask=layout.pack(mask),
        values=layout.pack(vector.tensor("old_values")),
        returns=layout.pack(vector.tensor("returns")),
    ).weighted(aggregation(vector.params, mask))
    live = vector.tensor("packed_values" if vector.has("packed_values") else "values")
    live = (live * vector.params.get("value_scale", 1.0)).requires_grad_()
    predictions = layout.response_from_predictions(live[:, 0]) if vector.has("packed_values") else layout.pack(live)
    loss = value_loss(step.bind(value_predictions=predictions), critic_error(vector.params))
    loss.backward()
    gradient = live.grad
    assert isinstance(gradient, Tensor)
    assert torch.isfinite(gradient).all()
    vector.check(loss.value, gradient)
