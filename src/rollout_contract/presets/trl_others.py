"""TRL's RLOOConfig, and the experimental trainers that replace the loss of GRPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K3
from rollout_contract.objectives import GMPO, GSPOToken, Objective, ProductClip
from rollout_contract.presets.options import TrainerOptions, not_covered
from rollout_contract.presets.recipe import AdvantageRule, KLInLoss, KLInReward, Recipe
from rollout_contract.presets.trl import TRLOptions
from rollout_contract.presets.trl_rewards import GroupRewards
from rollout_contract.presets.trl_unrelated import UNRELATED

_MEAN = Aggregation(mode="seq-mean-token-mean", count_empty=True)


class TRLGSPOTokenOptions(TRLOptions):
    """Of ``GRPOConfig`` under ``trl.experimental.gspo_token``, whose level is ``sequence_token``."""

    trainer: ClassVar[str] = "TRL gspo_token"
    version: ClassVar[str] = "f2cd57710"

    importance_sampling_level: Literal["token", "sequence", "sequence_token"] = "sequence_token"  # type: ignore[assignment]

    def refusals(self) -> Iterator[Violation]:
        yield from super().refusals()
        if self.importance_sampling_level != "sequence_token":
            yield not_covered("importance_sampling_level", self.importance_sampling_level, 'preset("trl", ...) has it')
        elif self.loss_type not in ("grpo", "bnpo", "dr_grpo", "dapo"):
            yield not_covered("loss_type", self.loss_type, "a clipped loss")
        if self.beta and self.use_bias_correction_kl:
            yield not_covered("use_bias_correction_kl", True, "the weight would be the sequence's", "False")

    def objective(self) -> Objective:
        low, high = self.clip
        return GSPOToken(clip_low=low, clip_high=high, ratio_cap=self.delta, log_ratio_bound=None)


class TRLGMPOOptions(GroupRewards, TrainerOptions):
    """Of ``GMPOConfig`` (``trl.experimental.gmpo``); the clip range is that of a token's log-ratio."""

    trainer: ClassVar[str] = "TRL gmpo"
    version: ClassVar[str] = "1.16.0"
    unrelated: ClassVar[tuple[str, ...]] = UNRELATED

    epsilon: NonNegativeFloat = 0.4
    epsilon_high: NonNegativeFloat | None = None
    beta: float = 0.0
    top_entropy_quantile: float = 1.0

    def refusals(self) -> Iterator[Violation]:
        if self.top_entropy_quantile < 1.0:
            why = "GMPO then leaves tokens out of the geometric mean"
            yield not_covered("top_entropy_quantile", self.top_entropy_quantile, why)

    def recipe(self) -> Recipe:
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        kl = KLInLoss(coefficient=self.beta, estimator=K3(), aggregation=_MEAN) if self.beta else None
        return Recipe(
            trainer=self.trainer,
            objective=GMPO(clip_low=self.epsilon, clip_high=high, log_ratio_bound=None),
            aggregation=_MEAN,
            kl_loss=kl,
            advantages=self.advantages(),
            notes=tuple(self.reward_notes()),
        )


class TRLRLOOOptions(TrainerOptions):
    """Of ``RLOOConfig``."""

    trainer: ClassVar[str] = "TRL RLOO"
    version: ClassVar[str] = "1.16.0"
    unrelated: ClassVar[tuple[str, ...]] = UNRELATED

    epsilon: NonNegativeFloat = 0.2
    epsilon_high: NonNegativeFloat | None = None
    beta: float = 0.05
    normalize_advantages: bool = False
    reward_weights: tuple[float, ...] | None = None
    reward_clip_range: tuple[float, float] | None = None
    mask_truncated_completions: bool = False

    def refusals(self) -> Iterator[Violation]:
        if self.normalize_advantages:
            why = "TRL normalises over samples; whiten() is over tokens"
            yield not_covered("normalize_advantages", True, why)

    def recipe(self) -> Recipe:
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return Recipe(
            trainer=self.trainer,
            objective=ProductClip(clip_low=self.epsilon, clip_high=high, log_ratio_bound=None),
            aggregation=_MEAN,
            kl_reward=KLInReward(coefficient=self.beta, estimator=K1()) if self.beta else None,
            advantages=AdvantageRule(estimator="rloo"),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self.beta:
            yield "take beta times the sum of the KL over the response off its reward (rollout_contract.kl_reward)"
        if self.reward_clip_range is not None:
            yield f"clamp the rewards to {list(self.reward_clip_range)}"
        if self.reward_weights is not None:
            yield f"rewards are sums of the components with weights {list(self.reward_weights)}"
        if self.mask_truncated_completions:
            yield "take truncated responses out of loss_mask"
