"""Tinker's ``loss_fn`` and ``loss_fn_config``. Every ratio is taken against the sampler, and losses are sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.errors import Violation
from rollout_contract.objectives import DRO, NLL, ImportanceSampling, Objective, PPOClip, RolloutCISPO
from rollout_contract.presets.options import TrainerOptions, contradiction, option
from rollout_contract.presets.recipe import AdvantageRule, Recipe

_CONFIG = "loss_fn_config."


class TinkerOptions(TrainerOptions):
    """Of ``forward_backward``, and ``kl_penalty_coef`` of its cookbook."""

    trainer: ClassVar[str] = "Tinker"
    version: ClassVar[str] = "2026"

    loss_fn: Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"] = "importance_sampling"
    clip_low_threshold: NonNegativeFloat = option(f"{_CONFIG}clip_low_threshold", 0.8)
    clip_high_threshold: PositiveFloat = option(f"{_CONFIG}clip_high_threshold", 1.2)
    beta: PositiveFloat = option(f"{_CONFIG}beta", 0.05)
    kl_penalty_coef: NonNegativeFloat = 0.0

    def refusals(self) -> Iterator[Violation]:
        if self.loss_fn == "ppo" and not self.clip_low_threshold <= 1.0 <= self.clip_high_threshold:
            found = [self.clip_low_threshold, self.clip_high_threshold]
            yield contradiction("clip_low_threshold, clip_high_threshold", found, "bounds of the ratio, around 1")

    def recipe(self) -> Recipe:
        sampler = self.loss_fn in ("importance_sampling", "ppo", "dro")
        return Recipe(
            trainer=self.trainer,
            objective=self._objective(),
            aggregation=Aggregation(mode="sum"),
            bypass=sampler,
            advantages=self._distillation() if self.kl_penalty_coef else None,
            notes=("give the sampler's log-probs as old_log_probs",) if sampler else (),
        )

    def _objective(self) -> Objective:
        low, high = self.clip_low_threshold, self.clip_high_threshold
        if self.loss_fn == "ppo":
            return PPOClip(clip_low=1.0 - low, clip_high=high - 1.0, log_ratio_bound=None)
        if self.loss_fn == "cispo":
            return RolloutCISPO(ratio_min=low, ratio_max=high, log_ratio_bound=None)
        others: dict[str, Objective] = {
            "cross_entropy": NLL(),
            "importance_sampling": ImportanceSampling(log_ratio_bound=None),
            "dro": DRO(beta=self.beta),
        }
        return others[self.loss_fn]

    def _distillation(self) -> AdvantageRule:
        return AdvantageRule(estimator="opd_advantages", options={"coef": self.kl_penalty_coef})
