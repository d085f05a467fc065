"""OpenRLHF's flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import CorrectionRule, IcePop, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, SampledKL
from rollout_contract.kl_reward import AdaptiveKLCoefficient
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import GSPO, Objective, PPOClip
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered
from rollout_contract.presets.recipe import AdvantageRule, Critic, Entropy, KLInLoss, KLInReward, Recipe
from rollout_contract.presets.rules import ZeroOutside

_TOKEN_MEAN = Aggregation(mode="token-mean")
_WHITENING = Whitening(bessel=False, epsilon_in="floor")


class OpenRLHFOptions(TrainerOptions):
    """Of ``openrlhf.cli.train_ppo_ray``, with or without ``--``."""

    trainer: ClassVar[str] = "OpenRLHF"
    version: ClassVar[str] = "3c3be6234"
    unrelated: ClassVar[tuple[str, ...]] = (
        "ref_*", "reward_num_*", "reward_pretrain", "actor_*", "critic_*", "colocate_*", "vllm_num_engines",
        "vllm_tensor_parallel_size", "vllm_sync_*", "vllm_enable_sleep", "vllm_gpu_memory_utilization",
        "vllm_generate_batch_size", "enable_prefix_caching", "enforce_eager", "async_*", "eval_*", "save_*",
        "logging_steps", "ckpt_path", "disable_ds_ckpt", "max_ckpt_*", "load_checkpoint", "use_ds_universal_ckpt",
        "local_rank", "zero_stage", "gradient_checkpointing*", "deepcompile", "bf16", "param_dtype", "enable_ema",
        "ema_beta", "zpg", "adam_*", "attn_implementation", "use_liger_kernel", "grad_accum_dtype", "overlap_comm",
        "disable_fast_tokenizer", "deepspeed_enable_sleep", "ds_tensor_parallel_size", "packing_samples",
        "use_dynamic_batch", "rollout_*", "train_*", "load_in_4bit", "lora_*", "target_modules", "num_episodes",
        "micro_*", "max_epochs", "prompt_*", "generate_max_len", "max_len", "max_samples", "max_norm", "l2", "top_p",
        "temperature", "seed", "full_determinism", "freezing_actor_steps", "n_samples_per_prompt", "lr_*",
        "normalize_reward", "reward_clip_range", "overlong_*", "ring_*", "pretrain", "remote_rm_url",
        "value_head_prefix", "agent_func_path", "input_*", "label_key", "apply_chat_template", "use_wandb", "wandb_*",
        "dynamic_filtering*", "use_tensorboard", "perf", "use_ms",
    )  # fmt: skip

    policy_loss_type: Literal["ppo", "gspo"] = "ppo"
    eps_clip: NonNegativeFloat = 0.2
    eps_clip_low_high: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    dual_clip: float | None = Field(None, gt=1.0)
    value_clip: PositiveFloat | None = 0.5
    enable_vllm_is_correction: bool = False
    vllm_is_correction_type: Literal["tis", "icepop", "seq-mask-tis"] = "tis"
    vllm_is_truncated_threshold: tuple[NonNegativeFloat, PositiveFloat] = (0.5, 5.0)
    use_kl_loss: bool = False
    init_kl_coef: NonNegativeFloat = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    kl_target: PositiveFloat | None = None
    kl_horizon: PositiveFloat = 10000
    entropy_loss_coef: float | None = None
    aux_loss_coef: float = 0.0
    ptx_coef: float = 0.05
    advantage_estimator: Literal["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"] = "gae"
    gamma: float = Field(1.0, ge=0.0, le=1.0)
    lambd: float = Field(1.0, ge=0.0, le=1.0)
    no_advantage_std_norm: bool = False

    def refusals(self) -> Iterator[Violation]:
        low, high = self.vllm_is_truncated_threshold
        if low > high:
            yield contradiction("vllm_is_truncated_threshold", [low, high], "low and high in order")
        if "eps_clip" in self.model_fields_set and self.eps_clip_low_high not in (None, (self.eps_clip,) * 2):
            expected = f"left out: eps_clip_low_high={list(self.eps_clip_low_high or ())} is what counts"
            yield contradiction("eps_clip", self.eps_clip, expected)
        if self.aux_loss_coef:
            yield not_covered("aux_loss_coef", self.aux_loss_coef, "it is a loss of the router")
        if self.no_advantage_std_norm and self.advantage_estimator in ("gae", "reinforce", "reinforce_baseline"):
            yield not_covered("no_advantage_std_norm", True, "whitening without the division")
        if self.gamma < 1.0 and not self._takes_token_rewards:
            why = "OpenRLHF discounts the shaped reward of the group from the last token on"
            yield not_covered("gamma", self.gamma, why, f"gamma=1 with {self.advantage_estimator}")
        if self.advantage_estimator == "reinforce_baseline" and self._kl_reward() is not None:
            why = "the KL of each token is taken off before the whitening"
            yield not_covered("init_kl_coef", self.init_kl_coef, why, "init_kl_coef=0, or use_kl_loss")

    @property
    def _takes_token_rewards(self) -> bool:
        return self.advantage_estimator in ("gae", "reinforce")

    def recipe(self) -> Recipe:
        low, high = self.eps_clip_low_high or (self.eps_clip, self.eps_clip)
        gspo = self.policy_loss_type == "gspo"
        kind = GSPO if gspo else PPOClip
        bound = None if gspo else 20.0
        objective: Objective = kind(clip_low=low, clip_high=high, dual_clip=self.dual_clip, log_ratio_bound=bound)
        corrects = self.enable_vllm_is_correction
        coefficient = self.entropy_loss_coef
        return Recipe(
            trainer=self.trainer,
            objective=objective,
            aggregation=Aggregation(mode="seq-mean-token-mean") if gspo else _TOKEN_MEAN,
            correction=self._correction() if corrects and not gspo else None,
            bypass=corrects and gspo,
            kl_loss=self._kl_loss(),
            entropy=Entropy(coefficient=coefficient, aggregation=_TOKEN_MEAN) if coefficient else None,
            kl_reward=self._kl_reward(),
            advantages=self._advantages(),
            critic=self._critic() if self.advantage_estimator == "gae" else None,
            notes=tuple(self._notes()),
        )

    def _correction(self) -> CorrectionRule:
        low, high = self.vllm_is_truncated_threshold
        if self.vllm_is_correction_type == "icepop":
            return IcePop(low=low, high=high, log_ratio_bound=None)
        if self.vllm_is_correction_type == "tis":
            return Truncate(low=low, high=high, log_ratio_bound=None)
        outside = Reject(level="sequence-mean", low=low, high=high, log_ratio_bound=None)
        return ZeroOutside(rule=Truncate(high=None, log_ratio_bound=None), outside=outside)

    @property
    def _estimate(self) -> SampledKL:
        kinds: dict[str, SampledKL] = {"k1": K1(output_bound=10.0), "k2": K2(output_bound=10.0)}
        return kinds.get(self.kl_estimator, K3(output_bound=10.0))

    def _kl_loss(self) -> KLInLoss | None:
        if not self.use_kl_loss or not self.init_kl_coef:
            return None
        return KLInLoss(coefficient=self.init_kl_coef, estimator=self._estimate, aggregation=_TOKEN_MEAN)

    def _kl_reward(self) -> KLInReward | None:
        if self.use_kl_loss or not self.init_kl_coef:
            return None
        coefficient: float | AdaptiveKLCoefficient = self.init_kl_coef
        if self.kl_target is not None:
            coefficient = AdaptiveKLCoefficient(value=self.init_kl_coef, target=self.kl_target, horizon=self.kl_horizon)
        return KLInReward(coefficient=coefficient, estimator=self._estimate)

    def _critic(self) -> Critic:
        return Critic(error=CriticError(clip=self.value_clip), aggregation=_TOKEN_MEAN)

    def _advantages(self) -> AdvantageRule:
        if self.advantage_estimator == "gae":
            options = {"gamma": self.gamma, "lam": self.lambd, "masked": "step"}
            return AdvantageRule(estimator="gae", options=options, whitening=_WHITENING)
        if self.advantage_estimator == "reinforce":
            options = {"gamma": self.gamma, "masked": "step", "whitening": _WHITENING}
            return AdvantageRule(estimator="reinforce_plus_plus", options=options)
        if self.advantage_estimator == "reinforce_baseline":
            return AdvantageRule(estimator="reinforce_plus_plus_baseline", options={"whitening": _WHITENING})
        if self.advantage_estimator == "group_norm":
            return AdvantageRule(estimator="grpo", options={"eps": 1e-9})
        return AdvantageRule(estimator=self.advantage_estimator)

    def _notes(self) -> Iterator[str]:
        if self.enable_vllm_is_correction and self.policy_loss_type == "gspo":
            yield "OpenRLHF then takes GSPO's ratio against the sampler: give its log-probs as old_log_probs"
        if self._kl_reward() is None:
            return
        if self._takes_token_rewards:
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
        else:
            yield "take the KL that is still to come off the advantages: discounted_returns of coefficient x kl_penalty"
