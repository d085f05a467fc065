"""A trainer that keeps its dict: one line after scoring, one above the loss.

python examples/guard_a_dict.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.boundary import MILES, PersistedBatch, contract, guard

logits = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)


def scored_dict() -> dict[str, Any]:
    """Two responses as miles stores them. Somebody forgot ``no_grad``, so the old scores are the policy itself."""
    return {
        "response_lengths": [2, 1],
        "loss_masks": [[1, 1], [1]],
        "log_probs": list((logits * 1.0).split([2, 1])),
        "rollout_log_probs": [[-1.2, -1.5], [-0.6]],
        "advantages": [torch.ones(2), -torch.ones(1)],
        "ref_log_probs": None,
    }


def surrogate(batch: dict[str, Any], log_probs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = (log_probs - torch.cat(batch["log_probs"])).exp()
    loss = -(ratio * torch.cat(batch["advantages"])).sum()
    return loss, {"ratio": ratio}


def gradient(batch: dict[str, Any], loss_function: Any) -> list[float]:
    logits.grad = None
    loss_function(batch, logits * 1.0)[0].backward()
    return [] if logits.grad is None else logits.grad.tolist()


print("nothing done:     gradient", gradient(scored_dict(), surrogate))

data = scored_dict()
batch = guard(data, PersistedBatch, MILES)
print("after guard:      gradient", gradient(data, surrogate))

guarded = contract(PersistedBatch, MILES, argument="batch")(surrogate)
print("called directly:  gradient", gradient(scored_dict(), guarded))

print()
print(batch)
