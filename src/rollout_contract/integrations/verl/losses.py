"""Policy losses with verl's signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from rollout_contract.boundary.dicts import admit
from rollout_contract.boundary.names import Names
from rollout_contract.integrations.verl.options import Config, weighted
from rollout_contract.integrations.verl.reports import reported
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import Objective


@runtime_checkable
class PolicyLoss(Protocol):
    """What verl's registry holds."""

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]: ...


NAMES = Names(
    trainer="verl",
    fields={
        "loss_mask": "response_mask",
        "log_probs": "log_prob",
        "old_log_probs": "old_log_prob",
        "rollout_log_probs": "old_log_prob",
        "correction_weights": "rollout_is_weights",
    },
)
"""The parameters of a policy loss. verl hands over one set of fixed scores; in bypass mode they are the sampler's."""


def as_policy_loss(objective: Objective | Callable[[Config], Objective], *, agg_mode: str | None = None) -> PolicyLoss:
    """A policy loss for verl's registry.

    Every fixed input is cut off its graph (or refused, see ``settings``), ``log_prob`` must be live, and what lies at
    masked positions is never read. Importance weights that the objective must not be multiplied with are refused.

    Args:
        objective: or what makes one of verl's configuration.
        agg_mode: in place of the configured ``loss_agg_mode``.
    """

    def policy_loss_function(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        found = objective if isinstance(objective, Objective) else objective(config)
        inputs = {
            "old_log_prob": old_log_prob,
            "log_prob": log_prob,
            "advantages": advantages,
            "response_mask": response_mask,
            "rollout_is_weights": rollout_is_weights,
        }
        batch = admit(inputs, found.reads, NAMES, {}, must_be_live=True)
        batch = weighted(batch, agg_mode or loss_agg_mode, config, response_mask.shape[-1])
        loss = policy_loss(batch, found)
        return loss.value, reported(loss.metrics)

    return policy_loss_function
