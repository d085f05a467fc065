"""From verl's configuration of the actor to an objective and to denominators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from rollout_contract.aggregation import Aggregation, Mode
from rollout_contract.errors import Violation, violation_error
from rollout_contract.objectives import Objective
from rollout_contract.objectives.filtered import Filtered
from rollout_contract.presets import Recipe, preset
from rollout_contract.schema.batch import RolloutBatch

ROW_MEAN = "row-mean"
"""What verl's ``geo_mean`` does whatever ``loss_agg_mode`` says: the mean over the rows of a micro-batch."""


_MODES: Mapping[str, Mode] = {
    "token-mean": "token-mean",
    "token-sum": "sum",
    "seq-mean-token-mean": "seq-mean-token-mean",
    "seq-mean-token-sum": "seq-mean-token-sum",
    "seq-mean-token-sum-norm": "constant",
}


@runtime_checkable
class Config(Protocol):
    """verl's ``ActorConfig``, its ``DistillationLossConfig``, or an omegaconf ``DictConfig``."""

    def get(self, key: str, default: Any = None, /) -> Any: ...


_ACTOR = ("clip_ratio_c", "tau_pos", "tau_neg")
_POLICY_LOSS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
_CORRECTION = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_is_batch_normalize",
    "rollout_rs",
    "rollout_rs_threshold",
    "loss_type",
)


def clip_range(config: Config) -> tuple[float, float]:
    """``clip_ratio_low`` and ``clip_ratio_high``; ``clip_ratio`` stands in where one of them is None."""
    clip = config.get("clip_ratio")
    low, high = config.get("clip_ratio_low"), config.get("clip_ratio_high")
    return float(clip if low is None else low), float(clip if high is None else high)


def recipe_of(mode: str, config: Config) -> Recipe:
    """What verl's options mean under one of its own loss modes.

    Raises:
        OptionError: an option is out of range, or lacks another one.
    """
    low, high = clip_range(config)
    options: dict[str, Any] = {"loss_mode": mode, "clip_ratio_low": low, "clip_ratio_high": high}
    options |= {name: config.get(name) for name in _ACTOR}
    policy_loss = config.get("policy_loss") or {}
    options |= {name: policy_loss.get(name) for name in _POLICY_LOSS}
    return _recipe(tuple((name, value) for name, value in options.items() if value is not None))


def correction_recipe(config: Config) -> tuple[Recipe, str]:
    """The correction that bypass mode makes of the live policy, and the loss type that follows."""
    policy_loss = config.get("policy_loss") or {}
    given = policy_loss.get("rollout_correction")
    if given is None:
        hint = "set algorithm.rollout_correction; verl hands it to the actor in bypass mode"
        wrong = Violation("rollout_correction", "missing", "a configuration, for loss_mode=bypass_mode", "none", hint)
        raise violation_error("policy_loss", wrong)
    options = {name: given.get(name) for name in _CORRECTION}
    kind = str(options.pop("loss_type") or "ppo_clip")
    return _recipe(tuple((name, value) for name, value in options.items() if value is not None)), kind


@lru_cache(maxsize=64)
def _recipe(options: tuple[tuple[str, Any], ...]) -> Recipe:
    return preset("verl", dict(options))


def fields_from(config: Config, kind: type[Objective]) -> dict[str, Any]:
    """Fields of an objective that verl does not have which mean what an option of verl means."""
    low, high = clip_range(config)
    known: Mapping[str, Any] = {
        "clip_low": low,
        "clip_high": high,
        "ratio_min": max(1.0 - low, 0.0),
        "ratio_max": 1.0 + high,
        "delta_low": low,
        "delta_high": high,
    }
    found = {name: value for name, value in known.items() if name in kind.model_fields}
    # What filters another objective filters verl's PPO clip.
    return found | ({"objective": recipe_of("vanilla", config).objective} if issubclass(kind, Filtered) else {})


def weighted(batch: RolloutBatch, mode: str, config: Config, width: int) -> Any:
    """The batch with verl's denominators: those of the global batch, where verl has counted it.

    Raises:
        MissingFieldError: there are several ranks, and verl did not count over them.
        MetadataError: verl has no such mode.
    """
    if mode == ROW_MEAN:
        return batch.weighted(Aggregation(mode="seq-mean-token-mean", count_empty=True))
    if mode not in _MODES:
        raise violation_error("policy_loss", Violation("loss_agg_mode", "metadata", ", ".join(_MODES), repr(mode)))
    info: Mapping[str, Any] = config.get("global_batch_info") or {}
    ranks = info.get("dp_size") or 1
    if mode == "token-sum":
        return batch.weighted("sum", scale=ranks)
    counted = "batch_num_tokens" if mode == "token-mean" else "global_batch_size"
    constant = (info.get("loss_scale_factor") or width) if mode == "seq-mean-token-sum-norm" else None
    aggregation = Aggregation(mode=_MODES[mode], constant=constant)
    return batch.weighted(aggregation, denominator=_count(counted, info.get(counted), ranks), scale=ranks)


def _count(name: str, count: Any, ranks: int) -> Any:
    if count is None and ranks > 1:
        wrong = Violation(name, "missing", f"the count over {ranks} data-parallel ranks", "none")
        raise violation_error("policy_loss", wrong)
    return max(count, 1) if isinstance(count, int | float) else count
