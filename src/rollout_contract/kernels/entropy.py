"""Entropy of a categorical distribution, and its gradient, from log-probs over the whole vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def surprise(log_probs: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
    """p log p, which is 0 where p is 0."""
    possible = log_probs > float("-inf")
    finite = log_probs.where(possible, 0.0)
    return torch.where(possible, finite.exp() * finite, 0.0)


def entropy(log_probs: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens"]:
    """-sum p log p, in nats."""
    return -surprise(log_probs).sum(-1)


def entropy_gradient(log_probs: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
    """d entropy / d logits = -p (log p + entropy)."""
    terms = surprise(log_probs)
    return log_probs.exp() * terms.sum(-1, keepdim=True) - terms
