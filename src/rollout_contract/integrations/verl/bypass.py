"""verl's bypass mode: the ratio is taken against the sampler, and the correction is made of the live policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.boundary.dicts import admit
from rollout_contract.corrections import Correction
from rollout_contract.errors import Violation, violation_error
from rollout_contract.integrations.verl.losses import NAMES
from rollout_contract.integrations.verl.options import correction_recipe, recipe_of, weighted
from rollout_contract.integrations.verl.reports import reported, reported_mismatch
from rollout_contract.losses.policy import policy_loss
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import Objective, Reinforce
from rollout_contract.presets.recipe import corrected
from rollout_contract.schemas import TISBatch


def bypass_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """verl's ``bypass_mode``: REINFORCE with importance weights, or PPO clip without, after a rejection.

    ``old_log_prob`` holds the sampler's scores. Weights and rejection compare them with the policy as it is in this
    micro-batch, as constants: live, they would turn the gradient around (see ``RolloutReinforce``).
    ``rollout_is_weights`` is not read, as in verl: the weights are made here.
    """
    recipe, loss_type = correction_recipe(config)
    objective = _objective(loss_type, config)
    scored = {"old": log_prob.detach(), "old_log_prob": old_log_prob, "response_mask": response_mask}
    scores = admit(scored, TISBatch, NAMES.but(fields={"old_log_probs": "old"}), {}, must_be_live=True)
    rule, group = recipe.correction, torch.distributed.group.WORLD if torch.distributed.is_initialized() else None
    found = Correction(scores) if rule is None else corrected(scores, rule, group)
    inputs = {
        "old_log_prob": old_log_prob,
        "log_prob": log_prob,
        "advantages": advantages,
        "response_mask": response_mask,
    }
    batch = admit(inputs, objective.reads, NAMES, {"row_ids": scores.row_ids}, must_be_live=True)
    weights = found.weights if loss_type == "reinforce" else None
    batch = batch.corrected(Correction(scores, weights=weights, mask=found.mask))
    loss = policy_loss(weighted(batch, loss_agg_mode, config, response_mask.shape[-1]), objective)
    return loss.value, reported(loss.metrics) | reported_mismatch(mismatch_metrics(scores), found.metrics)


def _objective(loss_type: str, config: Any) -> Objective:
    if loss_type == "ppo_clip":
        return recipe_of("vanilla", config).objective
    if loss_type == "reinforce":
        return Reinforce()
    wrong = Violation("loss_type", "metadata", "ppo_clip or reinforce", repr(loss_type))
    raise violation_error("bypass_mode", wrong)
