"""SkyRL's ``trainer.algorithm``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import CorrectionRule, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, AbsoluteKL, SampledKL
from rollout_contract.kl_reward import AdaptiveKLCoefficient
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import (
    CISPO,
    DPPO,
    NLL,
    SAPO,
    ClipCov,
    GSPOToken,
    ImportanceSampling,
    KLCov,
    Objective,
    PPOClip,
    RolloutCISPO,
    RolloutIS,
)
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered, option
from rollout_contract.presets.recipe import AdvantageRule, Critic, Entropy, KLInLoss, KLInReward, Recipe
from rollout_contract.presets.rules import ZeroOutside

_ALGORITHM = "trainer.algorithm."
_CORRECTION = f"{_ALGORITHM}off_policy_correction."
_TOKEN_MEAN = Aggregation(mode="token-mean")
_SAMPLE_MEAN = Aggregation(mode="seq-mean-token-mean", count_empty=True)

LossType = Literal[
    "regular", "dual_clip", "gspo", "sapo", "cispo", "clip_cov", "kl_cov", "rollout_is", "dppo", "cross_entropy",
    "importance_sampling",
]  # fmt: skip


class SkyRLOptions(TrainerOptions):
    """Of ``AlgorithmConfig``."""

    trainer: ClassVar[str] = "SkyRL"
    version: ClassVar[str] = "a9564572e"
    unrelated: ClassVar[tuple[str, ...]] = (
        "data.*", "generator.*", "environment.*", "trainer.placement.*", "trainer.policy.*", "trainer.ref.*",
        "trainer.critic.*", "trainer.fully_async.*", "trainer.strategy", "trainer.*batch_size*", "trainer.epochs",
        "trainer.eval_*", "trainer.ckpt_*", "trainer.logger", "trainer.project_name", "trainer.run_name",
        "trainer.resume_*", "trainer.seed", "trainer.flash_attn", "trainer.bf16", "trainer.gradient_checkpointing*",
        "trainer.update_*", "trainer.use_sample_packing", "trainer.max_prompt_length", "trainer.hf_save_interval",
        "trainer.export_path", "trainer.algorithm.value_head_prefix", "trainer.algorithm.dynamic_sampling.*",
    )  # fmt: skip

    policy_loss_type: LossType = option(f"{_ALGORITHM}policy_loss_type", "regular")
    loss_reduction: Literal[
        "token_mean", "token_mean_legacy", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean"
    ] = option(f"{_ALGORITHM}loss_reduction", "token_mean")
    max_seq_len: PositiveFloat | None = option(f"{_ALGORITHM}max_seq_len", None)
    eps_clip_low: NonNegativeFloat = option(f"{_ALGORITHM}eps_clip_low", 0.2)
    eps_clip_high: NonNegativeFloat = option(f"{_ALGORITHM}eps_clip_high", 0.2)
    clip_ratio_c: float = option(f"{_ALGORITHM}clip_ratio_c", 3.0, gt=1.0)
    value_clip: PositiveFloat | None = option(f"{_ALGORITHM}value_clip", 0.2)
    use_kl_loss: bool = option(f"{_ALGORITHM}use_kl_loss", True)
    use_kl_in_reward: bool = option(f"{_ALGORITHM}use_kl_in_reward", False)
    kl_loss_coef: NonNegativeFloat = option(f"{_ALGORITHM}kl_loss_coef", 0.001)
    kl_estimator_type: Literal["k1", "k2", "k3", "abs"] = option(f"{_ALGORITHM}kl_estimator_type", "k3")
    kl_ctrl_type: Literal["fixed", "adaptive"] = option(f"{_ALGORITHM}kl_ctrl.type", "fixed")
    kl_target: PositiveFloat = option(f"{_ALGORITHM}kl_ctrl.kl_target", 0.1)
    kl_horizon: PositiveFloat = option(f"{_ALGORITHM}kl_ctrl.horizon", 10000)
    use_entropy_loss: bool = option(f"{_ALGORITHM}use_entropy_loss", False)
    entropy_loss_coef: float = option(f"{_ALGORITHM}entropy_loss_coef", 0.01)
    advantage_estimator: Literal["grpo", "gae", "rloo", "reinforce++", "maxrl"] = option(
        f"{_ALGORITHM}advantage_estimator", "grpo"
    )
    grpo_norm_by_std: bool = option(f"{_ALGORITHM}grpo_norm_by_std", True)
    advantage_batch_normalize: bool = option(f"{_ALGORITHM}advantage_batch_normalize", False)
    zero_variance_filter: bool = option(f"{_ALGORITHM}zero_variance_filter", False)
    gamma: float = option(f"{_ALGORITHM}gamma", 1.0, ge=0.0, le=1.0)
    lambd: float = option(f"{_ALGORITHM}lambd", 1.0, ge=0.0, le=1.0)
    tau_pos: PositiveFloat = option(f"{_ALGORITHM}sapo.tau_pos", 1.0)
    tau_neg: PositiveFloat = option(f"{_ALGORITHM}sapo.tau_neg", 1.05)
    clip_cov_fraction: float = option(f"{_ALGORITHM}clip_cov.clip_ratio", 0.0002, gt=0.0, le=1.0)
    clip_cov_lb: float = option(f"{_ALGORITHM}clip_cov.clip_cov_lb", 1.0)
    clip_cov_ub: float = option(f"{_ALGORITHM}clip_cov.clip_cov_ub", 5.0)
    kl_cov_frac: float = option(f"{_ALGORITHM}kl_cov.kl_cov_frac", 0.2, gt=0.0, le=1.0)
    ppo_kl_coef: NonNegativeFloat = option(f"{_ALGORITHM}kl_cov.ppo_kl_coef", 1.0)
    cispo_eps_clip_low: NonNegativeFloat = option(f"{_ALGORITHM}cispo.cispo_eps_clip_low", 0.0)
    cispo_eps_clip_high: NonNegativeFloat = option(f"{_ALGORITHM}cispo.cispo_eps_clip_high", 5.0)
    cispo_anchor: Literal["old", "rollout"] = option(f"{_ALGORITHM}cispo.cispo_anchor", "old")
    dppo_type: Literal["binary_tv", "binary_kl"] = option(f"{_ALGORITHM}dppo.dppo_type", "binary_tv")
    dppo_delta_low: NonNegativeFloat = option(f"{_ALGORITHM}dppo.delta_low", 0.2)
    dppo_delta_high: NonNegativeFloat = option(f"{_ALGORITHM}dppo.delta_high", 0.2)
    tis_ratio_type: Literal["token", "sequence"] | None = option(f"{_CORRECTION}tis_ratio_type", None)
    token_tis_ratio_clip_high: PositiveFloat = option(f"{_CORRECTION}token_tis_ratio_clip_high", 2.0)
    sequence_tis_ratio_clip_high: PositiveFloat = option(f"{_CORRECTION}sequence_tis_ratio_clip_high", 5.0)
    sequence_mask_metric: Literal["product", "geometric"] | None = option(f"{_CORRECTION}sequence_mask_metric", None)
    geo_mask_low: PositiveFloat = option(f"{_CORRECTION}geo_mask_low", 0.99)
    geo_mask_high: PositiveFloat = option(f"{_CORRECTION}geo_mask_high", 1.01)
    product_mask_low: PositiveFloat = option(f"{_CORRECTION}product_mask_low", 0.5)
    product_mask_high: PositiveFloat = option(f"{_CORRECTION}product_mask_high", 2.0)
    outlier_low: PositiveFloat | None = option(f"{_CORRECTION}outlier_token_is_threshold_low", None)
    outlier_high: PositiveFloat | None = option(f"{_CORRECTION}outlier_token_is_threshold_high", None)
    token_mask_low: PositiveFloat | None = option(f"{_CORRECTION}token_mask_is_threshold_low", None)
    token_mask_high: PositiveFloat | None = option(f"{_CORRECTION}token_mask_is_threshold_high", None)

    def refusals(self) -> Iterator[Violation]:
        if self.use_kl_loss and self.use_kl_in_reward:
            yield contradiction("use_kl_in_reward", True, "False next to use_kl_loss, which is on by default")
        if self.loss_reduction == "token_mean_legacy":
            why = "the mean of each micro-batch, so that the split changes the loss"
            yield not_covered("loss_reduction", "token_mean_legacy", why, "token_mean")
        if self.loss_reduction == "seq_mean_token_sum_norm" and self.max_seq_len is None:
            yield contradiction("max_seq_len", None, "a number for loss_reduction=seq_mean_token_sum_norm")
        if self.policy_loss_type == "clip_cov" and self.clip_cov_lb >= self.clip_cov_ub:
            yield contradiction("clip_cov_lb", self.clip_cov_lb, f"less than clip_cov_ub={self.clip_cov_ub}")
        if (self.token_mask_low is None) != (self.token_mask_high is None):
            yield contradiction("token_mask_is_threshold_low, token_mask_is_threshold_high", "one", "both, or none")
        if self.zero_variance_filter:
            yield not_covered("zero_variance_filter", True, "take these samples out of loss_mask (zero_variance())")
        yield from self._double_refusals()

    def _double_refusals(self) -> Iterator[Violation]:
        rejects = bool(list(self._rejections()))
        if not rejects and self.tis_ratio_type is None:
            return
        if self.policy_loss_type in ("clip_cov", "kl_cov", "cross_entropy", "importance_sampling"):
            expected = f"none: SkyRL's {self.policy_loss_type} does not read it"
            yield contradiction("off_policy_correction", "set", expected)
        elif self._objective().correction == "refuses" and self.tis_ratio_type is not None:
            expected = f"None: {self.policy_loss_type} is weighted against the sampler already"
            yield contradiction("tis_ratio_type", self.tis_ratio_type, expected)
        elif self._objective().correction == "refuses" and (self._kl_loss() or self.use_entropy_loss):
            why = f"{self.policy_loss_type} takes a narrower mask in place of weights, and the KL would lose its tokens"
            yield not_covered("use_kl_loss, use_entropy_loss", True, why, "turn them off, or reject nothing")

    def recipe(self) -> Recipe:
        entropy = Entropy(coefficient=self.entropy_loss_coef, aggregation=_TOKEN_MEAN)
        return Recipe(
            trainer=self.trainer,
            objective=self._objective(),
            aggregation=self._aggregation(),
            correction=self._correction(),
            keep_denominators=True,
            kl_loss=self._kl_loss(),
            entropy=entropy if self.use_entropy_loss and self.entropy_loss_coef else None,
            kl_reward=self._kl_reward(),
            advantages=self._advantages(),
            critic=self._critic() if self.advantage_estimator == "gae" else None,
            notes=tuple(self._notes()),
        )

    def _objective(self) -> Objective:
        kind, clip = self.policy_loss_type, {"clip_low": self.eps_clip_low, "clip_high": self.eps_clip_high}
        if kind == "gspo":
            return GSPOToken.model_validate(clip | {"log_ratio_bound": None, "log_ratio_cap": 10.0})
        if kind == "cispo":
            low, high = max(1 - self.cispo_eps_clip_low, 0.0), 1 + self.cispo_eps_clip_high
            anchored = CISPO if self.cispo_anchor == "old" else RolloutCISPO
            return anchored(ratio_min=low, ratio_max=high)
        if kind == "clip_cov":
            band = {"covariance_low": self.clip_cov_lb, "covariance_high": self.clip_cov_ub}
            options = clip | band | {"fraction": self.clip_cov_fraction, "log_ratio_bound": None}
            return ClipCov.model_validate(options)
        if kind == "kl_cov":
            return KLCov(fraction=self.kl_cov_frac, coef=self.ppo_kl_coef, log_ratio_bound=None)
        if kind == "rollout_is":
            return RolloutIS(ratio_min=1 - self.eps_clip_low, ratio_max=1 + self.eps_clip_high)
        if kind == "dppo":
            divergence: Literal["tv", "kl"] = "tv" if self.dppo_type == "binary_tv" else "kl"
            return DPPO(divergence=divergence, delta_low=self.dppo_delta_low, delta_high=self.dppo_delta_high)
        if kind in ("regular", "dual_clip"):
            return PPOClip.model_validate(clip | {"dual_clip": self.clip_ratio_c if kind == "dual_clip" else None})
        others: dict[str, Objective] = {
            "sapo": SAPO(tau_positive=self.tau_pos, tau_negative=self.tau_neg),
            "cross_entropy": NLL(),
            "importance_sampling": ImportanceSampling(log_ratio_bound=None),
        }
        return others[kind]

    def _aggregation(self) -> Aggregation:
        if self.loss_reduction == "sequence_mean":
            return _SAMPLE_MEAN
        if self.loss_reduction == "seq_mean_token_sum_norm":
            return Aggregation(mode="constant", constant=self.max_seq_len, count_empty=True)
        if self.loss_reduction == "prompt_mean":
            return Aggregation(mode="prompt-mean", count_empty=True)
        return _TOKEN_MEAN

    def _weights(self) -> CorrectionRule | None:
        if self.tis_ratio_type == "token":
            return Truncate(high=self.token_tis_ratio_clip_high)
        if self.tis_ratio_type == "sequence":
            return Truncate(high=self.sequence_tis_ratio_clip_high, level="sequence")
        return None

    def _rejections(self) -> Iterator[Reject]:
        if self.sequence_mask_metric == "geometric":
            yield Reject(level="sequence-mean", low=self.geo_mask_low, high=self.geo_mask_high)
        if self.sequence_mask_metric == "product":
            yield Reject(level="sequence-sum", low=self.product_mask_low, high=self.product_mask_high)
        if self.outlier_low is not None or self.outlier_high is not None:
            yield Reject(level="sequence-every", low=self.outlier_low, high=self.outlier_high)
        if self.token_mask_low is not None and self.token_mask_high is not None:
            yield Reject(low=self.token_mask_low, high=self.token_mask_high)

    def _correction(self) -> CorrectionRule | None:
        """SkyRL rejects in the policy loss alone: weights of 0 do so, except where an objective refuses weights."""
        found = self._weights()
        weighs = self._objective().correction != "refuses"
        for rejection in self._rejections():
            if weighs:
                found = ZeroOutside(rule=found, outside=rejection)
            else:
                found = rejection if found is None else found & rejection
        return found

    def _estimate(self) -> SampledKL:
        clamped = K3(input_bound=20.0, output_bound=10.0)
        kinds: dict[str, SampledKL] = {"k1": K1(), "k2": K2(), "k3": clamped, "abs": AbsoluteKL()}
        return kinds[self.kl_estimator_type]

    def _kl_loss(self) -> KLInLoss | None:
        if not self.use_kl_loss or not self.kl_loss_coef:
            return None
        return KLInLoss(coefficient=self.kl_loss_coef, estimator=self._estimate(), aggregation=_SAMPLE_MEAN)

    def _kl_reward(self) -> KLInReward | None:
        if not self.use_kl_in_reward or not self.kl_loss_coef:
            return None
        coefficient: float | AdaptiveKLCoefficient = self.kl_loss_coef
        if self.kl_ctrl_type == "adaptive":
            coefficient = AdaptiveKLCoefficient(value=self.kl_loss_coef, target=self.kl_target, horizon=self.kl_horizon)
        return KLInReward(coefficient=coefficient, estimator=self._estimate())

    def _critic(self) -> Critic:
        return Critic(error=CriticError(clip=self.value_clip), aggregation=_SAMPLE_MEAN)

    def _advantages(self) -> AdvantageRule:
        whitening = Whitening() if self.advantage_batch_normalize else None
        named: dict[str, tuple[str, dict[str, Any]]] = {
            "grpo": ("grpo" if self.grpo_norm_by_std else "dr_grpo", {"singleton": "raw"}),
            "rloo": ("rloo", {}),
            "maxrl": ("max_rl", {"eps": 1e-6, "singleton": "raw"}),
            "gae": ("gae", {"gamma": self.gamma, "lam": self.lambd}),
            "reinforce++": ("reinforce_plus_plus", {"gamma": self.gamma, "masked": "reset"}),
        }
        name, options = named[self.advantage_estimator]
        return AdvantageRule(estimator=name, options=options, whitening=Whitening() if name == "gae" else whitening)

    def _notes(self) -> Iterator[str]:
        if self._kl_reward() is not None:
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
        if self.advantage_estimator == "gae":
            yield "SkyRL's GAE steps over tool tokens too: give the estimator a batch whose mask covers them"
        if self.policy_loss_type in ("clip_cov", "kl_cov"):
            yield "statistics are those of a micro-batch, so the split changes the loss"
