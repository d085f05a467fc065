"""Batches made from the tensors of a vector: every column of a padded [batch, width] tensor is a response token."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from rollout_contract.aggregation import Aggregation
from rollout_contract.schema.batch import RolloutBatch
from tests.conformance.harness import Vector

BatchT = TypeVar("BatchT", bound=RolloutBatch)


def tensor(vector: Vector, role: str) -> Tensor:
    """The tensor of a role."""
    return vector.tensor(role)


def live(vector: Vector, role: str) -> Tensor:
    """The tensor of a role as a leaf that receives a gradient."""
    return tensor(vector, role).requires_grad_()


def flat(padded: Tensor) -> Tensor:
    """[batch, width, ...] -> [tokens, ...]."""
    return padded.flatten(0, 1)


def build(schema: type[BatchT], mask: Tensor, **padded: Tensor) -> BatchT:
    """A batch of ``schema`` over every column, with the fixed fields given as padded tensors."""
    lengths = [mask.shape[1]] * mask.shape[0]
    return schema(response_lengths=lengths, loss_mask=flat(mask), **{name: flat(x) for name, x in padded.items()})


def weighted(batch: BatchT, aggregation: dict[str, Any]) -> BatchT:
    """The batch with the weights that a vector's ``aggregation`` asks for."""
    mode, denominator = aggregation["mode"], aggregation.get("denominator", "mask_sum")
    if mode == "sum":
        return batch.weighted("sum")
    if mode == "sum_seq_token_mean":
        return batch.weighted(Aggregation(mode="seq-mean-token-mean", count_empty=True), scale=float(len(batch)))
    if mode == "seq_mean_token_mean" and denominator == "batch":
        return batch.weighted(Aggregation(mode="seq-mean-token-mean", count_empty=True))
    if mode == "token_mean" and denominator == "mask_sum":
        return batch.weighted("token-mean")
    if mode == "token_mean" and isinstance(denominator, float | int):
        return batch.weighted("sum", scale=1.0 / (denominator + aggregation.get("eps", 0.0)))
    raise AssertionError(f"unknown aggregation {aggregation}")


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    """d (sum of value) / d leaf; zero where nothing depends on it."""
    found = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0]
    return torch.zeros_like(leaf) if found is None else found
