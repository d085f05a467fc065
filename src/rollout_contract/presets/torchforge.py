"""torchforge's two losses."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.kl import K3
from rollout_contract.objectives import OnPolicyRatio, RolloutReinforce
from rollout_contract.presets.options import TrainerOptions
from rollout_contract.presets.recipe import KLInLoss, Recipe


class SimpleGRPOOptions(TrainerOptions):
    """Of ``SimpleGRPOLoss``."""

    trainer: ClassVar[str] = "torchforge SimpleGRPOLoss"
    version: ClassVar[str] = "6e77f0b37"

    beta: float = 0.1

    def recipe(self) -> Recipe:
        aggregation = Aggregation(mode="seq-mean-token-mean", count_empty=True)
        kl = KLInLoss(coefficient=self.beta, estimator=K3(), aggregation=aggregation) if self.beta else None
        return Recipe(trainer=self.trainer, objective=OnPolicyRatio(), aggregation=aggregation, kl_loss=kl)


class ReinforceOptions(TrainerOptions):
    """Of ``ReinforceLoss``."""

    trainer: ClassVar[str] = "torchforge ReinforceLoss"
    version: ClassVar[str] = "6e77f0b37"

    is_clip_min: NonNegativeFloat = Field(0.1)
    is_clip_max: PositiveFloat = Field(10.0)

    def recipe(self) -> Recipe:
        objective = RolloutReinforce(weight_min=self.is_clip_min, weight_max=self.is_clip_max, log_ratio_bound=None)
        return Recipe(trainer=self.trainer, objective=objective, aggregation=Aggregation(mode="token-mean"))
