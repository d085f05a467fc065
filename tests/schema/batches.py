"""Batches that the tests of the contract share: two samples, of two and three response tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.losses.loss import Loss
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import PolicyBatch, TISBatch

LENGTHS = [2, 3]
MASK = [[1, 1], [1, 0, 1]]
OLD = [-1.0, -2.0, -0.5, -3.0, -1.5]
ADVANTAGES = [1.0, 1.0, -1.0, -1.0, -1.0]
NAN = float("nan")


class FullBatch(PolicyBatch, TISBatch):
    """Advantages, and the scores of trainer and sampler."""


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Distinct negative numbers, fit for log-probs."""
    count = int(torch.tensor(shape).prod())
    return -torch.arange(1, count + 1, dtype=dtype).reshape(shape) / 8


def fields(**changes: Any) -> dict[str, Any]:
    """What the constructor of :class:`PolicyBatch` takes."""
    plain = {
        "response_lengths": LENGTHS,
        "loss_mask": MASK,
        "old_log_probs": torch.tensor(OLD),
        "advantages": torch.tensor(ADVANTAGES),
    }
    return {name: value for name, value in (plain | changes).items() if value is not ...}


def policy_batch(**changes: Any) -> PolicyBatch:
    """A policy batch; ``name=...`` (the ellipsis) leaves a field out."""
    return PolicyBatch(**fields(**changes))


def live(values: Tensor | None = None) -> Tensor:
    """A leaf that stands for the policy's output."""
    tensor = torch.tensor(OLD) - 0.1 if values is None else values.detach().clone()
    return tensor.requires_grad_()


def trained(batch: PolicyBatch, log_probs: Tensor | None = None) -> tuple[Loss, Tensor]:
    """The policy loss of a batch after a backward pass, and the live leaf with its gradient."""
    leaf = live(log_probs if log_probs is not None else batch.old_log_probs - 0.1)
    weighted = batch if batch.has("loss_weights") else batch.weighted("token-mean")
    loss = policy_loss(weighted.bind(log_probs=leaf), PPOClip())
    loss.backward()
    return loss, leaf
