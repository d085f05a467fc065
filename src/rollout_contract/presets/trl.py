"""TRL's GRPOConfig."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import CorrectionRule, IcePop, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.objectives import OPSM, Objective, ProximalOPSM, TopEntropy
from rollout_contract.presets.grpo_losses import GRPOLosses
from rollout_contract.presets.options import contradiction, not_covered
from rollout_contract.presets.recipe import Entropy, Recipe
from rollout_contract.presets.rules import ZeroOutside
from rollout_contract.presets.trl_rewards import GroupRewards
from rollout_contract.presets.trl_unrelated import UNRELATED

_TOKEN_MEAN = Aggregation(mode="token-mean")
ISMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class TRLOptions(GroupRewards, GRPOLosses):
    """Of ``GRPOConfig``."""

    trainer: ClassVar[str] = "TRL"
    version: ClassVar[str] = "1.16.0"
    unrelated: ClassVar[tuple[str, ...]] = UNRELATED

    epsilon: NonNegativeFloat = 0.2
    epsilon_high: NonNegativeFloat | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    max_completion_length: int | None = Field(512, gt=0)
    use_vllm: bool = False
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: ISMode = "sequence_mask"
    vllm_importance_sampling_clip_max: PositiveFloat | None = 3.0
    vllm_importance_sampling_clip_min: NonNegativeFloat | None = None
    vllm_importance_sampling_cap: PositiveFloat | None = None
    off_policy_mask_threshold: PositiveFloat | None = None
    top_entropy_quantile: float = Field(1.0, ge=0.0, le=1.0)
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005
    entropy_target: float = 0.2
    router_aux_loss_coef: float | None = None

    @property
    def clip(self) -> tuple[float, float]:
        return self.epsilon, self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def _corrects(self) -> bool:
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def _is_bounds(self) -> tuple[float | None, float | None]:
        cap = self.vllm_importance_sampling_cap
        return self.vllm_importance_sampling_clip_min, cap or self.vllm_importance_sampling_clip_max

    def refusals(self) -> Iterator[Violation]:
        yield from super().refusals()
        yield from self._correction_refusals()
        if self.use_adaptive_entropy:
            yield not_covered("use_adaptive_entropy", True, "the coefficient changes from step to step")
        if self.top_entropy_quantile == 0.0:
            yield not_covered("top_entropy_quantile", 0.0, "only the single token of highest entropy would train")
        if self.top_entropy_quantile < 1.0 and self.entropy_coef:
            why = "TRL gives the bonus to the tokens of high entropy alone"
            yield not_covered("entropy_coef", self.entropy_coef, why, "drop it, or top_entropy_quantile")
        if self.router_aux_loss_coef:
            yield not_covered("router_aux_loss_coef", self.router_aux_loss_coef, "it is a loss of the router")

    def _correction_refusals(self) -> Iterator[Violation]:
        low, high = self._is_bounds
        if self._corrects and low is not None and high is not None and low >= high:
            expected = f"less than vllm_importance_sampling_clip_max={high}"
            yield contradiction("vllm_importance_sampling_clip_min", low, expected)
        mode = self.vllm_importance_sampling_mode
        if self._corrects and self.loss_type == "vespo" and mode.startswith("sequence"):
            expected = "token_truncate | token_mask: VESPO multiplies the weights of a response's tokens itself"
            yield contradiction("vllm_importance_sampling_mode", mode, expected)

    def recipe(self) -> Recipe:
        objective, aggregation = self._masked(self.objective()), self.aggregation()
        return Recipe(
            trainer=self.trainer,
            objective=objective,
            aggregation=aggregation,
            correction=self._correction() if self._corrects else None,
            kl_loss=self.kl_loss(),
            entropy=Entropy(coefficient=self.entropy_coef, aggregation=_TOKEN_MEAN) if self.entropy_coef else None,
            advantages=self.advantages(),
            notes=tuple(self._notes()),
        )

    def _masked(self, objective: Objective) -> Objective:
        if self.off_policy_mask_threshold is not None:
            kind = OPSM if self.use_vllm else ProximalOPSM
            objective = kind(objective=objective, delta=self.off_policy_mask_threshold)
        if self.top_entropy_quantile < 1.0:
            objective = TopEntropy(objective=objective, fraction=self.top_entropy_quantile)
        return objective

    def _correction(self) -> CorrectionRule:
        low, high = self._is_bounds
        mode = self.vllm_importance_sampling_mode
        if mode == "token_mask":
            return IcePop(low=low, high=high, log_ratio_bound=None)
        if mode == "sequence_mask":
            raw = Truncate(high=None, level="sequence", log_ratio_bound=None)
            if low is None and high is None:
                return raw
            outside = Reject(level="sequence-sum", low=low, high=high, log_ratio_bound=None)
            return ZeroOutside(rule=raw, outside=outside)
        level: Literal["token", "sequence"] = "token" if mode == "token_truncate" else "sequence"
        return Truncate(low=low, high=high, level=level, log_ratio_bound=None)

    def _notes(self) -> Iterator[str]:
        if self.loss_type == "bnpo":
            yield "TRL's bnpo takes the mean of each micro-batch; here it is that of the step"
        yield from self.reward_notes()
