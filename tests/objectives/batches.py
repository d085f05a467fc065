"""Random batches with every field that an objective reads, padding-free, with holes in the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.objectives import OBJECTIVES, Objective
from rollout_contract.schema.batch import RolloutBatch

ALL = [kind() for kind in OBJECTIVES.values()]
LENGTHS = [4, 1, 0, 5]


def names(objective: Objective) -> str:
    return objective.name


def random_field(name: str, size: int, dtype: torch.dtype) -> Tensor:
    values = torch.randn(size, dtype=dtype)
    return -values.abs() - 0.05 if name.endswith("log_probs") else values


def make_step(
    schema: type[RolloutBatch], seed: int = 0, dtype: torch.dtype = torch.float64, lengths: list[int] | None = None
) -> Any:
    """A step of ``schema``, weighted by sequence means; a few trained tokens are masked out."""
    torch.manual_seed(seed)
    lengths = LENGTHS if lengths is None else lengths
    tokens = sum(lengths)
    mask = torch.ones(tokens, dtype=torch.bool)
    mask[1:-1:3] = False
    sizes = {"tokens": tokens, "batch": len(lengths)}
    fields = {
        name: random_field(name, sizes[spec.axis], dtype)
        for name, spec in schema.__plan__.items()
        if spec.is_tensor and spec.required and name != "loss_mask"
    }
    return schema(response_lengths=lengths, loss_mask=mask, **fields).weighted("seq-mean-token-mean")


def live_log_probs(step: Any, seed: int = 1, spread: float = 0.3, dtype: torch.dtype = torch.float64) -> Tensor:
    """A leaf near the scores of the batch, so that some tokens are clipped and some are not."""
    torch.manual_seed(seed)
    anchors = [n for n in ("rollout_log_probs", "old_log_probs", "ref_log_probs") if step.has(n)]
    near = getattr(step, anchors[0]).detach() if anchors else random_field("log_probs", step.layout.num_tokens, dtype)
    return (near + spread * torch.randn(near.shape, dtype=dtype)).clamp(max=0.0).to(dtype).requires_grad_()


def bind(step: Any, log_probs: Tensor) -> Any:
    """The step with live log-probs, and an entropy to look at where its schema has one."""
    extra = {}
    if "observed_entropy" in type(step).__plan__:
        torch.manual_seed(2)
        extra["observed_entropy"] = torch.rand(log_probs.shape, dtype=log_probs.dtype)
    return step.bind(log_probs=log_probs, **extra)
