"""The losses that TRL and Liger have under the same names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.errors import Violation
from rollout_contract.kl import K3, KLEstimator, UnbiasedKL
from rollout_contract.objectives import CISPO, GSPO, LUSPO, SAPO, VESPO, Objective, PPOClip
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered
from rollout_contract.presets.recipe import KLInLoss

_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
_TOKEN_MEAN = ("bnpo", "dapo", "cispo", "vespo")


class GRPOLosses(TrainerOptions):
    """``loss_type``, and what each of them reads. ``clip``, ``beta`` and more stand in the trainer's own class."""

    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"] = "dapo"
    importance_sampling_level: Literal["token", "sequence"] = "token"
    delta: float | None = Field(None, gt=1.0)
    sapo_temperature_pos: PositiveFloat = 1.0
    sapo_temperature_neg: PositiveFloat = 1.05
    vespo_k_pos: NonNegativeFloat = 2.0
    vespo_lambda_pos: NonNegativeFloat = 3.0
    vespo_k_neg: NonNegativeFloat = 3.0
    vespo_lambda_neg: NonNegativeFloat = 2.0
    beta: float
    use_bias_correction_kl: bool
    max_completion_length: int | None

    @property
    @abstractmethod
    def clip(self) -> tuple[float, float]:
        """The clip range below and above 1."""

    @property
    def is_sequence_level(self) -> bool:
        return self.importance_sampling_level == "sequence"

    def refusals(self) -> Iterator[Violation]:
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            yield contradiction("max_completion_length", None, "a number for loss_type=dr_grpo")
        if self.is_sequence_level and self.loss_type in ("cispo", "vespo"):
            expected = f"token: {self.loss_type} with one ratio per sequence is in no paper"
            yield not_covered("importance_sampling_level", "sequence", expected)
        if self.delta is not None and self.loss_type not in _CLIPPED:
            yield contradiction("delta", self.delta, f"None: loss_type={self.loss_type} does not read it")

    def objective(self) -> Objective:
        """The policy objective. Nobody bounds log-ratios here."""
        low, high = self.clip
        if self.loss_type == "cispo":
            return CISPO(ratio_max=high, log_ratio_bound=None)
        if self.loss_type == "sapo":
            taus = {"tau_positive": self.sapo_temperature_pos, "tau_negative": self.sapo_temperature_neg}
            return SAPO(level=self.importance_sampling_level, log_ratio_bound=None, **taus)
        if self.loss_type == "vespo":
            return VESPO(
                k_positive=self.vespo_k_pos,
                lambda_positive=self.vespo_lambda_pos,
                k_negative=self.vespo_k_neg,
                lambda_negative=self.vespo_lambda_neg,
            )
        kind: type[ClippedObjective] = PPOClip
        if self.is_sequence_level:
            kind = LUSPO if self.loss_type == "luspo" else GSPO
        return kind(clip_low=low, clip_high=high, ratio_cap=self.delta, log_ratio_bound=None)

    def aggregation(self) -> Aggregation:
        """Of the policy loss."""
        if self.loss_type in _TOKEN_MEAN:
            return Aggregation(mode="token-mean")
        if self.loss_type == "dr_grpo":
            return Aggregation(mode="constant", constant=self.max_completion_length, count_empty=True)
        if self.loss_type == "luspo" and not self.is_sequence_level:
            return Aggregation(mode="seq-mean-token-sum", count_empty=True)
        return Aggregation(mode="seq-mean-token-mean", count_empty=True)

    def kl_loss(self) -> KLInLoss | None:
        """k3; with the importance weight of the policy, unless ``use_bias_correction_kl`` is off."""
        if not self.beta:
            return None
        estimator: KLEstimator = K3()
        if self.use_bias_correction_kl:
            level = self.importance_sampling_level
            estimator = UnbiasedKL(estimator=K3(), level=level, cut_where_clamped=False, log_weight_bound=None)
        aggregation = self.aggregation()
        if self.loss_type == "luspo":
            aggregation = Aggregation(mode="seq-mean-token-sum", count_empty=True)
        return KLInLoss(coefficient=self.beta, estimator=estimator, aggregation=aggregation)
