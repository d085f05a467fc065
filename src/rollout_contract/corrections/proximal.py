"""The proximal policy of decoupled PPO, when nobody scored the rollouts with it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rollout_contract.errors import Violation, raise_violations
from rollout_contract.kernels import importance


def proximal_log_probs(
    rollout_log_probs: Tensor,
    log_probs: Tensor,
    versions: Tensor,
    *,
    version: int,
    blend: Literal["log-linear", "linear"] = "log-linear",
) -> Tensor:
    """Approximate ``old_log_probs`` between the policy that sampled a token and the current one, by their versions.

    Decoupled PPO (arXiv:2110.00641) has three policies: behaviour (``rollout_log_probs``), proximal (``old_log_probs``)
    and current. Scoring a step with the proximal policy costs a forward pass; with asynchronous rollouts whose weights'
    version is recorded (AReaL, arXiv:2505.24298) this stands in for it. The proximal policy is the one before the
    current: a token sampled with version v is a share of clamp((version - 1 - v) / (version - v), 0, 1) of the way from
    the behaviour policy to the current one.

    Args:
        rollout_log_probs: [tokens] in nats.
        log_probs: [tokens] of the current policy, before the first update on this step; it is detached.
        versions: [tokens] integer, the version of the weights that sampled each token; negative where none did.
        version: the version of the current policy.
        blend: interpolate log-probs (``log-linear``) or probabilities (``linear``).

    Returns:
        [tokens] without a graph, to build a batch with. A token of the current version or later, and one without a
        version, keeps its ``rollout_log_probs``.

    Raises:
        ShapeError: the three tensors do not have one shape.
    """
    given = {"rollout_log_probs": rollout_log_probs, "log_probs": log_probs, "versions": versions}
    raise_violations(
        "proximal_log_probs",
        [
            Violation(name, "shape", f"{list(rollout_log_probs.shape)}, as rollout_log_probs", str(list(tensor.shape)))
            for name, tensor in given.items()
            if tensor.shape != rollout_log_probs.shape
        ],
    )
    behaviour, current = rollout_log_probs.detach(), log_probs.detach().to(rollout_log_probs.dtype)
    lag = (version - versions).to(behaviour.dtype)
    stale = (versions >= 0) & (lag > 0)
    share = ((lag - 1) / lag.where(stale, 1)).clamp(0.0, 1.0).where(stale, 0.0)
    blended = importance.interpolated_log_probs(behaviour, current, share, blend == "linear")
    # Where the share is 0 the current policy is not asked, so that its NaN at such a token is not either.
    return torch.where(share > 0, blended, behaviour)
