"""Dicts as trainers have them between scoring and loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAN = float("nan")
LENGTHS = [2, 3]
SCORES = ("log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs", "values", "returns", "advantages",
          "opd_reverse_kl")  # fmt: skip
"""The keys of miles under which every fixed score lies."""


def rows(start: float = -1.0, step: float = -0.25) -> list[Tensor]:
    """Two rows of distinct numbers, fit for log-probs."""
    flat = start + step * torch.arange(sum(LENGTHS), dtype=torch.float32)
    return list(flat.split(LENGTHS))


def live(tensors: list[Tensor]) -> list[Tensor]:
    """The same rows with graphs."""
    return [tensor.clone().requires_grad_() * 1.0 for tensor in tensors]


def miles_dict(**changes: Any) -> dict[str, Any]:
    """Of miles: lists of tensors, float masks, an empty prompt, and keys that no schema knows."""
    scores = {key: rows(-1.0 - 0.1 * index) for index, key in enumerate(SCORES)}
    scores["advantages"] = rows(1.0, -0.5)
    plain: dict[str, Any] = {
        "tokens": [torch.arange(2), torch.arange(7)],
        "loss_masks": [torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])],
        "response_lengths": list(LENGTHS),
        "total_lengths": [2, 7],
        "rewards": [1.0, 0.0],
        "raw_reward": [1.0, 0.0, 1.0, 1.0],
        "truncated": [0, 1],
        "metadata": [{}, {"task": "sum"}],
    }
    return {key: value for key, value in (plain | scores | changes).items() if value is not ...}


def padded(packed: Tensor, lengths: list[int], width: int, side: str = "right", pad: float = 0.0) -> Tensor:
    """[rows, width] with the entries of each row at one side."""
    out = packed.new_full((len(lengths), width), pad)
    for row, entries in enumerate(packed.split(lengths)):
        start = 0 if side == "right" else width - len(entries)
        out[row, start : start + len(entries)] = entries
    return out
