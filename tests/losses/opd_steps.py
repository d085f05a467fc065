"""Steps that the distillation tests share: two samples of three and two tokens, one of them masked out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.schemas import OPDBatch, RolloutTeacherBatch

LENGTHS = [3, 2]
MASK = [1, 0, 1, 1, 1]
LOG_PROBS = [-1.0, -9.0, -0.3, -2.5, -1.2]
OLD = [-1.1, -3.0, -0.2, -2.2, -1.5]
ROLLOUT = [-1.3, -2.0, -0.4, -2.6, -1.1]
TEACHER = [-0.6, -4.0, -1.0, -0.9, -1.4]
ADVANTAGES = [1.0, 7.0, 1.0, -2.0, -2.0]
GARBAGE = [float("nan"), float("inf"), float("-inf"), 1e30]


class Step(OPDBatch, RolloutTeacherBatch):
    """What every distillation on the sampled token can read."""


def numbers(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def live(values: list[float] = LOG_PROBS) -> Tensor:
    return numbers(values).requires_grad_()


def step(**changes: Any) -> Step:
    """An unbound step with plain sums as weights."""
    fields: dict[str, Any] = {
        "response_lengths": LENGTHS,
        "loss_mask": MASK,
        "old_log_probs": numbers(OLD),
        "rollout_log_probs": numbers(ROLLOUT),
        "teacher_log_probs": numbers(TEACHER),
    }
    return Step(**(fields | changes)).weighted("sum")


def masked(values: list[float], garbage: float) -> Tensor:
    """The values with ``garbage`` where the mask is off."""
    return numbers([value if keep else garbage for value, keep in zip(values, MASK, strict=True)])
