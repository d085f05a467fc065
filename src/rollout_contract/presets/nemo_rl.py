"""NeMo-RL's ``loss_fn`` and ``grpo.adv_estimator``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import LengthAdaptive, Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import CorrectionRule, IcePop, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, BehaviourKL, SampledKL, ScoreFunctionKL
from rollout_contract.objectives import CISPO, GSPO, Objective, OnPolicyRatio, PPOClip, Reinforce
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered, option
from rollout_contract.presets.recipe import AdvantageRule, KLInLoss, KLInReward, Recipe
from rollout_contract.presets.rules import ZeroOutside

_LOSS = "loss_fn."
_ADV = "grpo.adv_estimator."
_IS_TYPE = "truncated_importance_sampling_type"
_FLOOR = Whitening(bessel=False, epsilon_in="floor")


class NemoRLOptions(TrainerOptions):
    """Of ``ClippedPGLossConfig`` and ``AdvEstimatorConfig``."""

    trainer: ClassVar[str] = "NeMo-RL"
    version: ClassVar[str] = "7ea279abf"
    unrelated: ClassVar[tuple[str, ...]] = (
        "policy.*", "checkpointing.*", "data.*", "env.*", "logger.*", "cluster.*", "grpo.num_*", "grpo.max_*",
        "grpo.val_*", "grpo.seed", "grpo.batch_multiplier", "grpo.async_grpo.*", "grpo.use_dynamic_sampling",
        "grpo.dynamic_sampling_max_gen_batches", "grpo.skip_reference_policy_logprobs_calculation",
        "grpo.overlong_filtering", "grpo.reward_scaling.*", "grpo.reward_shaping.*",
    )  # fmt: skip

    disable_ppo_ratio: bool = option(f"{_LOSS}disable_ppo_ratio", False)
    token_level_loss: bool = option(f"{_LOSS}token_level_loss", True)
    sequence_level_importance_ratios: bool = option(f"{_LOSS}sequence_level_importance_ratios", False)
    ratio_clip_min: NonNegativeFloat = option(f"{_LOSS}ratio_clip_min", 0.2)
    ratio_clip_max: NonNegativeFloat = option(f"{_LOSS}ratio_clip_max", 0.2)
    ratio_clip_c: float | None = option(f"{_LOSS}ratio_clip_c", None, gt=1.0)
    reference_policy_kl_penalty: NonNegativeFloat = option(f"{_LOSS}reference_policy_kl_penalty", 0.01)
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = option(f"{_LOSS}reference_policy_kl_type", "k3")
    kl_input_clamp_value: PositiveFloat | None = option(f"{_LOSS}kl_input_clamp_value", 20.0)
    kl_output_clamp_value: PositiveFloat | None = option(f"{_LOSS}kl_output_clamp_value", 10.0)
    use_kl_in_reward: bool = option(f"{_LOSS}use_kl_in_reward", False)
    use_importance_sampling_correction: bool = option(f"{_LOSS}use_importance_sampling_correction", False)
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = option(
        f"{_LOSS}{_IS_TYPE}", None
    )
    truncated_importance_sampling_ratio: PositiveFloat | None = option(
        f"{_LOSS}truncated_importance_sampling_ratio", None
    )
    truncated_importance_sampling_ratio_min: NonNegativeFloat | None = option(
        f"{_LOSS}truncated_importance_sampling_ratio_min", None
    )
    use_on_policy_kl_approximation: bool = option(f"{_LOSS}use_on_policy_kl_approximation", False)
    force_on_policy_ratio: bool = option(f"{_LOSS}force_on_policy_ratio", False)
    use_cispo: bool = option(f"{_LOSS}use_cispo", False)
    positive_example_nll_weight: NonNegativeFloat = option(f"{_LOSS}positive_example_nll_weight", 0.0)
    adv_name: Literal["grpo", "gdpo", "reinforce_plus_plus", "raw_reward", "gae", "opd"] = option(f"{_ADV}name", "grpo")
    normalize_rewards: bool = option(f"{_ADV}normalize_rewards", True)
    use_leave_one_out_baseline: bool = option(f"{_ADV}use_leave_one_out_baseline", True)
    minus_baseline: bool = option(f"{_ADV}minus_baseline", True)
    reward_weights: tuple[float, ...] | None = option(f"{_ADV}reward_weights", None)
    gae_lambda: float = option(f"{_ADV}gae_lambda", 0.95, ge=0.0, le=1.0)
    gae_gamma: float = option(f"{_ADV}gae_gamma", 1.0, ge=0.0, le=1.0)
    normalize_advantages: bool = option(f"{_ADV}normalize_advantages", True)
    gae_lambda_value: float | None = option(f"{_ADV}gae_lambda_value", None, ge=0.0, le=1.0)
    gae_lambda_policy: float | None = option(f"{_ADV}gae_lambda_policy", None, ge=0.0, le=1.0)
    length_adaptive_alpha: NonNegativeFloat = option(f"{_ADV}length_adaptive_alpha", 0.0)

    def refusals(self) -> Iterator[Violation]:
        yield from self._ratio_refusals()
        yield from self._correction_refusals()
        if self.adv_name == "reinforce_plus_plus" and self.use_kl_in_reward:
            why = "the KL of each token is taken off before the whitening"
            yield not_covered("use_kl_in_reward", True, why, "whiten(batch, dr_grpo(batch) - coefficient * kl)")

    def _ratio_refusals(self) -> Iterator[Violation]:
        if self.sequence_level_importance_ratios and self.token_level_loss:
            yield contradiction("token_level_loss", True, "False for sequence_level_importance_ratios")
        if self.force_on_policy_ratio and self.sequence_level_importance_ratios:
            why = "a forced ratio of 1 has no sequence"
            yield not_covered("sequence_level_importance_ratios", True, why, "drop force_on_policy_ratio, or this")
        if not self.use_cispo:
            return
        for name in ("disable_ppo_ratio", "force_on_policy_ratio", "sequence_level_importance_ratios"):
            if getattr(self, name):
                yield contradiction(name, True, "False for use_cispo")
        if self.ratio_clip_c is not None:
            yield contradiction("ratio_clip_c", self.ratio_clip_c, "None for use_cispo")
        if not self.token_level_loss:
            yield contradiction("token_level_loss", False, "True for use_cispo")

    def _correction_refusals(self) -> Iterator[Violation]:
        kind = self.truncated_importance_sampling_type
        low, high = self.truncated_importance_sampling_ratio_min, self.truncated_importance_sampling_ratio
        if kind is None:
            if high is not None:
                yield contradiction("truncated_importance_sampling_ratio", high, f"None without {_IS_TYPE}")
            return
        if not self.use_importance_sampling_correction:
            yield contradiction(_IS_TYPE, kind, "None without use_importance_sampling_correction")
        if high is None:
            yield contradiction("truncated_importance_sampling_ratio", None, f"a number for {kind}")
        elif low is not None and low > high:
            yield contradiction("truncated_importance_sampling_ratio_min", low, f"at most {high}")
        if kind != "tis" and low is None:
            yield contradiction("truncated_importance_sampling_ratio_min", None, f"a number for {kind}")
        if kind != "tis" and self.sequence_level_importance_ratios:
            yield not_covered(_IS_TYPE, kind, "tis, or none, with sequence_level_importance_ratios")

    def recipe(self) -> Recipe:
        mode: Literal["token-mean", "seq-mean-token-mean"] = "seq-mean-token-mean"
        aggregation = Aggregation(mode="token-mean" if self.token_level_loss else mode)
        return Recipe(
            trainer=self.trainer,
            objective=self._objective(),
            aggregation=aggregation,
            correction=self._correction() if self.use_importance_sampling_correction else None,
            kl_loss=self._kl_loss(aggregation),
            kl_reward=self._kl_reward(),
            positive_nll=self.positive_example_nll_weight,
            advantages=self._advantages(),
            notes=tuple(self._notes()),
        )

    def _objective(self) -> Objective:
        low, high = self.ratio_clip_min, self.ratio_clip_max
        if self.use_cispo:
            return CISPO(ratio_min=max(1 - low, 0.0), ratio_max=1 + high, log_ratio_bound=None)
        if self.disable_ppo_ratio:
            return Reinforce()
        if self.force_on_policy_ratio:
            return OnPolicyRatio()
        kind = GSPO if self.sequence_level_importance_ratios else PPOClip
        return kind(clip_low=low, clip_high=high, dual_clip=self.ratio_clip_c, log_ratio_bound=None)

    def _correction(self) -> CorrectionRule:
        low, high = self.truncated_importance_sampling_ratio_min, self.truncated_importance_sampling_ratio
        level: Literal["token", "sequence"] = "sequence" if self.sequence_level_importance_ratios else "token"
        if self.truncated_importance_sampling_type == "icepop":
            return IcePop(low=low, high=high, log_ratio_bound=None)
        if self.truncated_importance_sampling_type == "seq-mask-tis":
            outside = Reject(level="sequence-mean", low=low, high=high, log_ratio_bound=None)
            return ZeroOutside(rule=Truncate(high=None, log_ratio_bound=None), outside=outside)
        return Truncate(low=low, high=high, level=level, log_ratio_bound=None)

    def _estimate(self) -> SampledKL:
        kinds: dict[str, type[K1 | K2 | K3]] = {"k1": K1, "k2": K2, "k3": K3}
        kind = kinds[self.reference_policy_kl_type]
        return kind(input_bound=self.kl_input_clamp_value, output_bound=self.kl_output_clamp_value)

    def _kl_loss(self, aggregation: Aggregation) -> KLInLoss | None:
        if self.use_kl_in_reward or not self.reference_policy_kl_penalty:
            return None
        kind = BehaviourKL if self.use_on_policy_kl_approximation else ScoreFunctionKL
        estimator = kind(estimator=self._estimate(), log_weight_bound=None)
        return KLInLoss(coefficient=self.reference_policy_kl_penalty, estimator=estimator, aggregation=aggregation)

    def _kl_reward(self) -> KLInReward | None:
        if not self.use_kl_in_reward or not self.reference_policy_kl_penalty:
            return None
        return KLInReward(coefficient=self.reference_policy_kl_penalty, estimator=self._estimate())

    def _advantages(self) -> AdvantageRule:
        if self.adv_name == "gae":
            return self._gae()
        if self.adv_name == "opd":
            return AdvantageRule(estimator="opd_advantages")
        if self.adv_name == "raw_reward":
            return AdvantageRule(estimator="raw_reward", whitening=_FLOOR if self.normalize_advantages else None)
        if self.adv_name == "reinforce_plus_plus":
            if self.minus_baseline:
                return AdvantageRule(estimator="reinforce_plus_plus_baseline", options={"whitening": _FLOOR})
            return AdvantageRule(estimator="raw_reward", whitening=_FLOOR)
        options: dict[str, Any] = {"leave_one_out": self.use_leave_one_out_baseline}
        if self.adv_name == "gdpo":
            return AdvantageRule(estimator="gdpo", options=options | {"weights": self.reward_weights})
        return AdvantageRule(
            estimator="grpo", options=options | {"scale": "group" if self.normalize_rewards else "none"}
        )

    def _gae(self) -> AdvantageRule:
        lam: float | LengthAdaptive = self.gae_lambda if self.gae_lambda_policy is None else self.gae_lambda_policy
        if self.length_adaptive_alpha:
            lam = LengthAdaptive(alpha=self.length_adaptive_alpha)
        value_lam = self.gae_lambda if self.gae_lambda_value is None else self.gae_lambda_value
        options = {"gamma": self.gae_gamma, "lam": lam, "value_lam": value_lam}
        return AdvantageRule(
            estimator="gae", options=options, whitening=Whitening() if self.normalize_advantages else None
        )

    def _notes(self) -> Iterator[str]:
        if self._kl_reward() is not None:
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
        if self.force_on_policy_ratio and self.use_importance_sampling_correction:
            yield "old_log_probs are those of the policy that is updated, at the start of the step"
