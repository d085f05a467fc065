"""Liger's fused GRPO loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field, NonNegativeFloat

from rollout_contract.errors import Violation
from rollout_contract.presets.grpo_losses import GRPOLosses
from rollout_contract.presets.options import not_covered
from rollout_contract.presets.recipe import Recipe


class LigerOptions(GRPOLosses):
    """Of ``LigerFusedLinearGRPOLoss``."""

    trainer: ClassVar[str] = "Liger"
    version: ClassVar[str] = "0.8.5"
    unrelated: ClassVar[tuple[str, ...]] = ("compiled", "chunk_size", "temperature")

    epsilon_low: NonNegativeFloat = 0.2
    epsilon_high: NonNegativeFloat = 0.2
    beta: float = 0.04
    use_ref_model: bool = True
    use_bias_correction_kl: bool = False
    max_completion_length: int | None = Field(None, gt=0)

    @property
    def clip(self) -> tuple[float, float]:
        return self.epsilon_low, self.epsilon_high

    def refusals(self) -> Iterator[Violation]:
        yield from super().refusals()
        if self.loss_type == "sapo" and self.is_sequence_level:
            yield not_covered("importance_sampling_level", "sequence", "Liger refuses it for sapo as well")
        if self.loss_type == "luspo" and self.beta and self.use_ref_model:
            why = "Liger averages n x KL over the padded width, so that the loss depends on padding"
            yield not_covered("beta", self.beta, why, "beta=0")

    def recipe(self) -> Recipe:
        return Recipe(
            trainer=self.trainer,
            objective=self.objective(),
            aggregation=self.aggregation(),
            kl_loss=self.kl_loss() if self.use_ref_model else None,
            notes=("a ratio against the sampler (vllm_is_ratio) is a Correction of the batch",),
        )
