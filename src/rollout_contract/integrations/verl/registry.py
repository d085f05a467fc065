"""Names under which verl selects a policy loss: ``actor_rollout_ref.actor.policy_loss.loss_mode``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from rollout_contract.integrations.verl.bypass import bypass_loss
from rollout_contract.integrations.verl.losses import PolicyLoss, as_policy_loss
from rollout_contract.integrations.verl.options import ROW_MEAN, Config, fields_from, recipe_of
from rollout_contract.objectives import OBJECTIVES, Objective
from rollout_contract.presets.verl import LossMode
from rollout_contract.schema.batch import RolloutBatch

_FORCED_AGG_MODE: Mapping[str, str] = {"sapo": "seq-mean-token-mean", "geo_mean": ROW_MEAN}
_SCORES = {"log_probs", "old_log_probs", "rollout_log_probs", "advantages"}
_SAME = {"ppo_clip": "vanilla", "gspo_token": "gspo", "dppo_proximal": "dppo_tv and dppo_kl"}
"""Objectives that verl has under another name."""
_OTHER_NAME = {"gspo": "gspo_sequence"}
"""verl's "gspo" is this library's GSPOToken; the objective of that name here has its gradient through the mean."""


def policy_losses() -> dict[str, PolicyLoss]:
    """Every policy loss, by name without prefix: those of verl, and those of this library that verl lacks.

    Of this library, these are the objectives that read nothing but what verl hands over: log-probs, one set of fixed
    scores, advantages. Those whose ratio is taken against the sampler belong into bypass mode, where the fixed scores
    are the sampler's.
    """
    found = {mode: _verls(mode) for mode in get_args(LossMode)}
    for name, kind in OBJECTIVES.items():
        if name in _SAME or (name in found and name not in _OTHER_NAME) or not _is_readable(kind):
            continue
        found[_OTHER_NAME.get(name, name)] = as_policy_loss(_made_of_options(kind))
    return found


def _verls(mode: str) -> PolicyLoss:
    if mode == "bypass_mode":
        return bypass_loss

    def objective(config: Config) -> Objective:
        return recipe_of(mode, config).objective

    return as_policy_loss(objective, agg_mode=_FORCED_AGG_MODE.get(mode))


def _made_of_options(kind: type[Objective]) -> Callable[[Config], Objective]:
    return lambda config: kind(**fields_from(config, kind))


def _is_readable(kind: type[Objective]) -> bool:
    plan = kind.reads.__plan__
    read = {name for name, spec in plan.items() if spec.is_tensor and name not in RolloutBatch.__plan__}
    return read <= _SCORES


def register(prefix: str = "contract_") -> tuple[str, ...]:
    """Put every policy loss of :func:`policy_losses` into verl's registry.

    Args:
        prefix: of the names. "" replaces verl's own functions, so that no configuration has to change; in bypass mode
            verl's trainer sets ``loss_mode=bypass_mode`` itself, so this is how to get it there.

    Returns:
        The names.
    """
    found = {prefix + name: function for name, function in policy_losses().items()}
    for name, function in found.items():
        _put(name, function)
    return tuple(found)


def register_objective(name: str, objective: Objective, *, agg_mode: str | None = None) -> None:
    """Put one objective with options of its own into verl's registry, for example ``GSPO(clip_low=3e-4)``.

    Args:
        name: for ``policy_loss.loss_mode``.
        objective: reads nothing but log-probs, old or rollout log-probs, and advantages.
        agg_mode: in place of the configured ``loss_agg_mode``.
    """
    _put(name, as_policy_loss(objective, agg_mode=agg_mode))


def _put(name: str, function: PolicyLoss) -> None:
    algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    algorithms.register_policy_loss(name)(function)
