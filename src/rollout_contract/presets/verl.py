"""verl's configuration of the PPO trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, AbsoluteKL, KLEstimator, LowVarKL, SampledKL, StraightThroughKL
from rollout_contract.kl_reward import AdaptiveKLCoefficient
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import (
    CISPO,
    DRO,
    GMPO,
    GPG,
    SAPO,
    ClipCov,
    GSPOToken,
    KLCov,
    Objective,
    PPOClip,
    ProximalDPPO,
    Reinforce,
    RolloutReinforce,
)
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered, option
from rollout_contract.presets.recipe import AdvantageRule, Critic, Entropy, KLInLoss, KLInReward, Recipe
from rollout_contract.presets.verl_correction import VerlCorrection

_ACTOR = "actor_rollout_ref.actor."
_POLICY_LOSS = f"{_ACTOR}policy_loss."

LossMode = Literal[
    "vanilla", "gspo", "cispo", "sapo", "geo_mean", "gpg", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro",
    "bypass_mode",
]  # fmt: skip
AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AdvEstimator = Literal[
    "gae", "grpo", "grpo_vectorized", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo",
    "rloo_vectorized", "opo", "gpg", "grpo_passk", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo",
]  # fmt: skip
LossKL = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "mse+", "k2+",
                 "low_var_kl+", "k3+", "full"]  # fmt: skip
RewardKL = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"]


class VerlOptions(VerlCorrection, TrainerOptions):
    """Of ``actor_rollout_ref.actor``, ``algorithm`` and ``critic``."""

    trainer: ClassVar[str] = "verl"
    version: ClassVar[str] = "0.9.1"
    whole: ClassVar[tuple[str, ...]] = ("critic.",)
    unrelated: ClassVar[tuple[str, ...]] = (
        "data.*", "trainer.*", "reward*.*", "ray_kwargs.*", "global_profiler.*", "transfer_queue.*", "custom_*",
        "actor_rollout_ref.rollout.*", "actor_rollout_ref.model.*", "actor_rollout_ref.ref.*",
        "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout", "algorithm.filter_groups.*",
        "*.optim.*", "*.checkpoint.*", "*.profiler.*", "*.fsdp_config.*", "*.megatron.*", "*.qat.*",
        "critic.model.*", "critic.enable", "critic.strategy", "*._target_", "*.ppo_mini_batch_size",
        "*.ppo_micro_batch_size*", "*.use_dynamic_bsz", "*.ppo_max_token_len_per_gpu", "*.ppo_epochs", "*.shuffle",
        "*.data_loader_seed", "*.strategy", "*.rollout_n", "*.grad_clip", "*.use_torch_compile", "*.entropy_*chunking",
        "*.use_remove_padding", "*.calculate_entropy", "*.calculate_sum_pi_squared", "*.freeze_vision_tower",
        "*.use_prefix_grouper", "*.use_fused_kernels", "*.ulysses_sequence_parallel_size",
    )  # fmt: skip

    clip_ratio: NonNegativeFloat = option(f"{_ACTOR}clip_ratio", 0.2)
    clip_ratio_low: NonNegativeFloat | None = option(f"{_ACTOR}clip_ratio_low", 0.2)
    clip_ratio_high: NonNegativeFloat | None = option(f"{_ACTOR}clip_ratio_high", 0.2)
    clip_ratio_c: float = option(f"{_ACTOR}clip_ratio_c", 3.0, gt=1.0)
    tau_pos: PositiveFloat = option(f"{_ACTOR}tau_pos", 1.0)
    tau_neg: PositiveFloat = option(f"{_ACTOR}tau_neg", 1.05)
    loss_agg_mode: AggMode = option(f"{_ACTOR}loss_agg_mode", "token-mean")
    loss_scale_factor: PositiveFloat | None = option(f"{_ACTOR}loss_scale_factor", None)
    entropy_coeff: float = option(f"{_ACTOR}entropy_coeff", 0.0)
    use_kl_loss: bool = option(f"{_ACTOR}use_kl_loss", False)
    kl_loss_coef: float = option(f"{_ACTOR}kl_loss_coef", 0.001)
    kl_loss_type: LossKL = option(f"{_ACTOR}kl_loss_type", "low_var_kl")
    loss_mode: LossMode = option(f"{_POLICY_LOSS}loss_mode", "vanilla")
    clip_cov_ratio: float = option(f"{_POLICY_LOSS}clip_cov_ratio", 0.0002, gt=0.0, le=1.0)
    clip_cov_lb: float = option(f"{_POLICY_LOSS}clip_cov_lb", 1.0)
    clip_cov_ub: float = option(f"{_POLICY_LOSS}clip_cov_ub", 5.0)
    kl_cov_ratio: float = option(f"{_POLICY_LOSS}kl_cov_ratio", 0.0002, gt=0.0, le=1.0)
    ppo_kl_coef: NonNegativeFloat = option(f"{_POLICY_LOSS}ppo_kl_coef", 0.1)
    dro_beta: PositiveFloat | None = option(f"{_POLICY_LOSS}dro_beta", None)
    adv_estimator: AdvEstimator = option("algorithm.adv_estimator", "gae")
    gamma: float = option("algorithm.gamma", 1.0, ge=0.0, le=1.0)
    lam: float = option("algorithm.lam", 1.0, ge=0.0, le=1.0)
    norm_adv_by_std_in_grpo: bool = option("algorithm.norm_adv_by_std_in_grpo", True)
    use_kl_in_reward: bool = option("algorithm.use_kl_in_reward", False)
    kl_penalty: RewardKL = option("algorithm.kl_penalty", "kl")
    kl_ctrl_type: Literal["fixed", "adaptive"] = option("algorithm.kl_ctrl.type", "fixed")
    kl_coef: NonNegativeFloat = option("algorithm.kl_ctrl.kl_coef", 0.001)
    kl_horizon: PositiveFloat = option("algorithm.kl_ctrl.horizon", 10000)
    target_kl: PositiveFloat = option("algorithm.kl_ctrl.target_kl", 0.1)
    use_pf_ppo: bool = option("algorithm.use_pf_ppo", False)
    cliprange_value: PositiveFloat = option("critic.cliprange_value", 0.5)
    critic_loss_agg_mode: AggMode | None = option("critic.loss_agg_mode", None)
    critic_loss_scale_factor: PositiveFloat | None = option("critic.loss_scale_factor", None)
    distillation: bool = option("distillation.enabled", False)

    def refusals(self) -> Iterator[Violation]:
        yield from super().refusals()
        yield from self._loss_refusals()
        norm = "seq-mean-token-sum-norm"
        if norm in (self.loss_agg_mode, self.critic_loss_agg_mode) and self.loss_scale_factor is None:
            why = "verl then divides by the padded width of the batch, so that the loss depends on padding"
            yield not_covered("loss_scale_factor", None, why, "give the longest allowed response")
        if "full" in (self.kl_loss_type if self.use_kl_loss else "", self.kl_penalty if self.use_kl_in_reward else ""):
            yield not_covered("kl_loss_type, kl_penalty", "full", "verl has no code for it")
        if self.use_pf_ppo:
            yield not_covered("use_pf_ppo", True, "it resamples the step")
        if self.adv_estimator == "gdpo":
            why = "verl whitens GDPO's sums over tokens, so long responses weigh more"
            yield not_covered("adv_estimator", "gdpo", why, "rollout_contract.advantages.gdpo whitens over samples")
        if self.distillation:
            yield not_covered("distillation.enabled", True, "see rollout_contract.distillation")

    def _loss_refusals(self) -> Iterator[Violation]:
        hidden = "clip_ratio" in self.model_fields_set and None not in (self.clip_ratio_low, self.clip_ratio_high)
        if hidden and self.clip_ratio not in (self.clip_ratio_low, self.clip_ratio_high):
            expected = "clip_ratio_low and clip_ratio_high, whose defaults of 0.2 hide clip_ratio in verl"
            yield contradiction("clip_ratio", self.clip_ratio, expected, "set these, or set them to None")
        if self.loss_mode == "dro" and self.dro_beta is None:
            yield contradiction("dro_beta", None, "a positive number for loss_mode=dro")
        if self.loss_mode == "clip_cov" and self.clip_cov_lb >= self.clip_cov_ub:
            yield contradiction("clip_cov_lb", self.clip_cov_lb, f"less than clip_cov_ub={self.clip_cov_ub}")

    def recipe(self) -> Recipe:
        objective = self._objective()
        forced = isinstance(objective, SAPO | GMPO)
        own = self._aggregation(self.loss_agg_mode, self.loss_scale_factor)
        return Recipe(
            trainer=self.trainer,
            objective=objective,
            aggregation=self._aggregation("seq-mean-token-mean", None) if forced else own,
            correction=self.correction(),
            bypass=self.is_bypass and isinstance(objective, PPOClip),
            kl_loss=self._kl_loss(own),
            entropy=Entropy(coefficient=self.entropy_coeff, aggregation=own) if self.entropy_coeff else None,
            kl_reward=self._kl_reward(),
            advantages=self._advantages(),
            critic=self._critic() if self.adv_estimator == "gae" else None,
            notes=tuple(self._notes()),
        )

    def _objective(self) -> Objective:
        if self.is_bypass:
            return self._bypass()
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        if self.loss_mode == "gspo":
            return GSPOToken(clip_low=low, clip_high=high, log_ratio_bound=None, log_ratio_cap=10.0)
        if self.loss_mode == "cispo":
            return CISPO(ratio_min=max(1 - low, 0.0), ratio_max=1 + high)
        if self.loss_mode == "sapo":
            return SAPO(tau_positive=self.tau_pos, tau_negative=self.tau_neg)
        if self.loss_mode == "geo_mean":
            return GMPO(clip_low=low, clip_high=high, log_ratio_bound=None)
        if self.loss_mode == "clip_cov":
            band = {"covariance_low": self.clip_cov_lb, "covariance_high": self.clip_cov_ub}
            return ClipCov(clip_low=low, clip_high=high, fraction=self.clip_cov_ratio, log_ratio_bound=None, **band)
        if self.loss_mode == "kl_cov":
            return KLCov(fraction=self.kl_cov_ratio, coef=self.ppo_kl_coef, log_ratio_bound=None)
        if self.loss_mode in ("dppo_tv", "dppo_kl"):
            divergence: Literal["tv", "kl"] = "tv" if self.loss_mode == "dppo_tv" else "kl"
            return ProximalDPPO(divergence=divergence, delta_low=low, delta_high=high, truncation=self.clip_ratio_c)
        if self.loss_mode == "dro" and self.dro_beta is not None:
            return DRO(beta=self.dro_beta)
        return GPG() if self.loss_mode == "gpg" else PPOClip(clip_low=low, clip_high=high, dual_clip=self.clip_ratio_c)

    def _bypass(self) -> Objective:
        if self.loss_type == "ppo_clip":
            low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
            high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
            return PPOClip(clip_low=low, clip_high=high, dual_clip=self.clip_ratio_c)
        if self.rollout_is is None:
            return Reinforce()
        return RolloutReinforce(weight_max=float(self.rollout_is_threshold), level=self.rollout_is)

    def _aggregation(self, mode: AggMode, factor: float | None) -> Aggregation:
        if mode == "token-sum":
            return Aggregation(mode="sum")
        if mode == "seq-mean-token-sum-norm":
            return Aggregation(mode="constant", constant=factor, count_empty=True)
        return Aggregation(mode=mode, count_empty=mode != "token-mean")

    def _kl_loss(self, aggregation: Aggregation) -> KLInLoss | None:
        if not self.use_kl_loss:
            return None
        sampled = sampled_kl(self.kl_loss_type.removesuffix("+"))
        estimator: KLEstimator = sampled
        if self.kl_loss_type.endswith("+") and not isinstance(sampled, K2):
            estimator = StraightThroughKL(estimator=sampled)
        return KLInLoss(coefficient=self.kl_loss_coef, estimator=estimator, aggregation=aggregation)

    def _kl_reward(self) -> KLInReward | None:
        if not self.use_kl_in_reward:
            return None
        coefficient: float | AdaptiveKLCoefficient = self.kl_coef
        if self.kl_ctrl_type == "adaptive":
            coefficient = AdaptiveKLCoefficient(value=self.kl_coef, target=self.target_kl, horizon=self.kl_horizon)
        return KLInReward(coefficient=coefficient, estimator=sampled_kl(self.kl_penalty))

    def _critic(self) -> Critic:
        mode = self.critic_loss_agg_mode or self.loss_agg_mode
        factor = self.critic_loss_scale_factor or self.loss_scale_factor
        return Critic(error=CriticError(clip=self.cliprange_value), aggregation=self._aggregation(mode, factor))

    def _advantages(self) -> AdvantageRule:
        whitening, scaled = Whitening(), self.norm_adv_by_std_in_grpo
        grpo = AdvantageRule(estimator="grpo" if scaled else "dr_grpo", options={"singleton": "raw"})
        rules = {
            "gae": AdvantageRule(estimator="gae", options={"gamma": self.gamma, "lam": self.lam}, whitening=whitening),
            "grpo": grpo,
            "grpo_vectorized": grpo,
            "reinforce_plus_plus": AdvantageRule(estimator="reinforce_plus_plus", options={"gamma": self.gamma}),
            "reinforce_plus_plus_baseline": AdvantageRule(
                estimator="reinforce_plus_plus_baseline", options={"singleton": "raw"}
            ),
            "rloo": AdvantageRule(estimator="rloo", options={"singleton": "raw"}),
            "rloo_vectorized": AdvantageRule(estimator="rloo"),
            "opo": AdvantageRule(estimator="opo", options={"singleton": "raw"}),
            "gpg": AdvantageRule(estimator="gpg", options={"singleton": "raw"}),
            "grpo_passk": AdvantageRule(estimator="pass_at_k", options={"normalize": self.norm_adv_by_std_in_grpo}),
            "remax": AdvantageRule(estimator="remax"),
            "optimal_token_baseline": otb("response", self.rollout_is is not None),
            "tir_optimal_token_baseline": otb("trained", self.rollout_is is not None),
        }
        return rules[self.adv_estimator]

    def _notes(self) -> Iterator[str]:
        if self.loss_mode == "kl_cov" or self.loss_mode == "clip_cov":
            yield "statistics are those of a micro-batch, so the split changes the loss"
        if self.use_kl_in_reward:
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
        yield from self.correction_notes()


def sampled_kl(name: str) -> SampledKL:
    """A KL of verl; its k3 is clamped."""
    kinds: dict[str, SampledKL] = {"kl": K1(), "k1": K1(), "abs": AbsoluteKL(), "mse": K2(), "k2": K2()}
    clamped = {"low_var_kl": LowVarKL(), "k3": K3(input_bound=20.0, output_bound=10.0)}
    return (kinds | clamped)[name]


def otb(positions: str, weighted: bool) -> AdvantageRule:
    options = {"positions": positions, "zero_tail": True, "importance_weighted": weighted}
    return AdvantageRule(estimator="optimal_token_baseline", options=options)
