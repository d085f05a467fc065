"""What the reported faults of batches are shown on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract import PolicyBatch, TISBatch, policy_loss
from rollout_contract.objectives import PPOClip

NAN = float("nan")


class Step(PolicyBatch, TISBatch):
    """Both kinds of scores, and advantages."""


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def policy(advantages: Any, lengths: list[int], **fields: Any) -> PolicyBatch:
    count = sum(lengths)
    plain: dict[str, Any] = {"loss_mask": torch.ones(count), "old_log_probs": torch.zeros(count) - 1.0}
    return PolicyBatch(response_lengths=lengths, advantages=advantages, **(plain | fields))


def gradient(batch: PolicyBatch, log_probs: Tensor, mode: Any = "sum") -> list[float]:
    policy_loss(batch.weighted(mode).bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    return log_probs.grad.tolist()
