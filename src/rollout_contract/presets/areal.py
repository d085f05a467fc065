"""AReaL's ``actor`` and ``critic``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import M2PO, CorrectionRule, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, SampledKL
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import GSPO, SAPO, Objective, PPOClip
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered, option
from rollout_contract.presets.recipe import AdvantageRule, Critic, KLInReward, Recipe

_ACTOR = "actor."
_REJECTION = f"{_ACTOR}rejection_sampling."
_TOKEN_MEAN = Aggregation(mode="token-mean")
Metric = Literal["ratio", "kl_k1", "kl_k2", "kl_k3"]


class ArealOptions(TrainerOptions):
    """Of ``PPOActorConfig``, ``RejectionSamplingConfig`` and ``PPOCriticConfig``."""

    trainer: ClassVar[str] = "AReaL"
    version: ClassVar[str] = "4aef98d8d"
    whole: ClassVar[tuple[str, ...]] = ("critic.",)
    unrelated: ClassVar[tuple[str, ...]] = (
        "experiment_name", "trial_name", "cluster.*", "rollout.*", "gconfig.*", "ref.*", "train_dataset.*",
        "valid_dataset.*", "saver.*", "recover.*", "evaluator.*", "stats_logger.*", "launcher.*", "sglang.*", "vllm.*",
        "seed", "total_train_*", "tokenizer_path", "async_training", "actor.path", "actor.backend", "actor.optimizer.*",
        "actor.mb_spec.*", "actor.fsdp.*", "actor.megatron.*", "actor.dtype", "actor.gradient_checkpointing",
        "actor.disable_dropout", "actor.scheduling_*", "actor.ppo_n_minibatches", "actor.max_new_tokens",
        "actor.log_agent_stats*", "actor.attn_impl", "actor.weight_update_mode", "actor.use_lora", "actor.lora_*",
        "actor.reward_scaling", "actor.reward_bias", "actor.reward_clip", "actor.overlong_*", "actor.group_size",
    )  # fmt: skip

    eps_clip: NonNegativeFloat = option(f"{_ACTOR}eps_clip", 0.2)
    eps_clip_higher: NonNegativeFloat | None = option(f"{_ACTOR}eps_clip_higher", None)
    c_clip: float | None = option(f"{_ACTOR}c_clip", None, gt=1.0)
    importance_sampling_level: Literal["token", "sequence"] = option(f"{_ACTOR}importance_sampling_level", "token")
    use_sapo_loss: bool = option(f"{_ACTOR}use_sapo_loss", False)
    sapo_tau_pos: PositiveFloat = option(f"{_ACTOR}sapo_tau_pos", 1.0)
    sapo_tau_neg: PositiveFloat = option(f"{_ACTOR}sapo_tau_neg", 1.05)
    use_decoupled_loss: bool = option(f"{_ACTOR}use_decoupled_loss", False)
    recompute_logprob: bool = option(f"{_ACTOR}recompute_logprob", False)
    prox_logp_method: Literal["recompute", "loglinear", "metrics"] = option(f"{_ACTOR}prox_logp_method", "recompute")
    m2_threshold: PositiveFloat | None = option(f"{_ACTOR}m2_threshold", None)
    rs_level: Literal["token", "sequence"] = option(f"{_REJECTION}level", "token")
    rs_action: Literal["mask", "clamp"] = option(f"{_REJECTION}action", "mask")
    rs_metric: Metric = option(f"{_REJECTION}metric", "ratio")
    rs_agg: Literal["sum", "mean", "max"] = option(f"{_REJECTION}agg", "mean")
    rs_upper: float | None = option(f"{_REJECTION}upper", None)
    rs_lower: float | None = option(f"{_REJECTION}lower", None)
    kl_ctl: NonNegativeFloat = option(f"{_ACTOR}kl_ctl", 0.1)
    kl_estimator: Literal["k1", "k2", "k3"] = option(f"{_ACTOR}kl_estimator", "k1")
    discount: float = option(f"{_ACTOR}discount", 1.0, ge=0.0, le=1.0)
    gae_lambda: float = option(f"{_ACTOR}gae_lambda", 1.0, ge=0.0, le=1.0)
    adv_norm_mean: Literal["batch", "group"] | None = option(f"{_ACTOR}adv_norm.mean_level", None)
    adv_norm_std: Literal["batch", "group"] | None = option(f"{_ACTOR}adv_norm.std_level", None)
    mask_no_eos_with_zero: bool = option(f"{_ACTOR}mask_no_eos_with_zero", False)
    critic_eps_clip: PositiveFloat | None = option("critic.eps_clip", None)
    value_loss_type: Literal["mse", "huber"] = option("critic.value_loss_type", "mse")

    @property
    def _rejects(self) -> bool:
        return self.rs_upper is not None

    def refusals(self) -> Iterator[Violation]:
        if self.use_sapo_loss and self.use_decoupled_loss:
            yield contradiction("use_decoupled_loss", True, "False for use_sapo_loss")
        if self.use_sapo_loss and self.c_clip is not None:
            yield contradiction("c_clip", self.c_clip, "None for use_sapo_loss")
        if not self.use_decoupled_loss:
            for name, value in (("rejection_sampling.upper", self.rs_upper), ("m2_threshold", self.m2_threshold)):
                if value is not None:
                    yield contradiction(name, value, "None without use_decoupled_loss")
        given = self.model_fields_set & {"rs_level", "rs_action", "rs_lower"}
        if self.use_decoupled_loss and given and not self._rejects:
            yield contradiction("rejection_sampling.upper", None, "a number: AReaL requires the upper bound")
        yield from self._clamp_refusals()
        norms = (self.adv_norm_mean, self.adv_norm_std)
        if norms not in ((None, None), ("batch", "batch")):
            yield not_covered("adv_norm", list(norms), "mean_level and std_level of the batch, or neither")

    def _clamp_refusals(self) -> Iterator[Violation]:
        if self.rs_action == "clamp" and self.rs_upper is not None and self.rs_upper <= 0:
            why = "AReaL clamps the importance weight to the bounds of the metric, so the weight would be negative"
            yield not_covered("rejection_sampling.upper", self.rs_upper, why, "metric=ratio with positive bounds")
        elif self.rs_upper is not None and self.rs_lower is not None and self.rs_lower > self.rs_upper:
            yield contradiction("rejection_sampling.lower", self.rs_lower, f"at most upper={self.rs_upper}")

    def recipe(self) -> Recipe:
        kinds: dict[str, SampledKL] = {"k1": K1(), "k2": K2(), "k3": K3()}
        options = {"gamma": self.discount, "lam": self.gae_lambda}
        whitening = Whitening(bessel=False, eps=1e-5, epsilon_in="std") if self.adv_norm_mean else None
        return Recipe(
            trainer=self.trainer,
            objective=self._objective(),
            aggregation=_TOKEN_MEAN,
            correction=self._correction() if self.use_decoupled_loss else None,
            keep_denominators=True,
            bypass=not (self.use_decoupled_loss or self.recompute_logprob),
            kl_reward=KLInReward(coefficient=self.kl_ctl, estimator=kinds[self.kl_estimator]) if self.kl_ctl else None,
            advantages=AdvantageRule(estimator="gae", options=options, whitening=whitening),
            critic=self._critic(),
            notes=tuple(self._notes()),
        )

    def _objective(self) -> Objective:
        if self.use_sapo_loss:
            taus = {"tau_positive": self.sapo_tau_pos, "tau_negative": self.sapo_tau_neg}
            return SAPO(level=self.importance_sampling_level, log_ratio_bound=None, **taus)
        high = self.eps_clip if self.eps_clip_higher is None else self.eps_clip_higher
        clip = {"clip_low": self.eps_clip, "clip_high": high, "dual_clip": self.c_clip, "log_ratio_bound": None}
        if self.importance_sampling_level == "sequence":
            return GSPO.model_validate(clip | {"average_advantages": True})
        return PPOClip.model_validate(clip)

    def _correction(self) -> CorrectionRule:
        rule = self._weights()
        return rule if self.m2_threshold is None else rule & M2PO(threshold=self.m2_threshold)

    def _weights(self) -> CorrectionRule:
        sequence = self.rs_level == "sequence" and self.rs_metric == "ratio"
        level: Literal["token", "geometric"] = "geometric" if self._rejects and sequence else "token"
        if not self._rejects:
            return Truncate(high=None, level=level, log_ratio_bound=None)
        if self.rs_action == "mask":
            return Truncate(high=None, level=level, log_ratio_bound=None) & self._outside()
        only = None if self.rs_level == "token" else self._outside()
        return Truncate(low=self.rs_lower, high=self.rs_upper, level=level, log_ratio_bound=None, only=only)

    def _outside(self) -> Reject:
        """AReaL's k1 is the log of the ratio; its k3 is the one in which the trainer's policy is the sampler."""
        statistic = {"ratio": "ratio", "kl_k1": "ratio", "kl_k2": "k2", "kl_k3": "reverse_k3"}[self.rs_metric]
        bounds = [self.rs_lower, self.rs_upper]
        if self.rs_metric == "kl_k1":
            bounds = [None if bound is None else math.exp(bound) for bound in bounds]
        level = "token" if self.rs_level == "token" else f"sequence-{self.rs_agg}"
        options = {"statistic": statistic, "level": level, "low": bounds[0], "high": bounds[1]}
        return Reject.model_validate(options | {"log_ratio_bound": None})

    def _critic(self) -> Critic | None:
        if self.critic_eps_clip is None:
            return None
        huber = 10.0 if self.value_loss_type == "huber" else None
        return Critic(error=CriticError(clip=self.critic_eps_clip, huber_delta=huber), aggregation=_TOKEN_MEAN)

    def _notes(self) -> Iterator[str]:
        if not (self.use_decoupled_loss or self.recompute_logprob):
            yield "AReaL takes the ratio against the sampler: give its log-probs as old_log_probs"
        if self.prox_logp_method == "loglinear":
            yield "old_log_probs are proximal_log_probs(rollout_log_probs, log_probs, versions, version=...)"
        if self.kl_ctl:
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
        if self.mask_no_eos_with_zero:
            yield "take responses without an end out of loss_mask"
