"""The command-line flags that miles and slime have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rollout_contract.advantages import Whitening
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import CorrectionRule, IcePop, Truncate
from rollout_contract.errors import Violation
from rollout_contract.kl import K1, K2, K3, KLEstimator, LowVarKL, SampledKL, UnbiasedKL
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import NLL, Objective, ProximalOPSM
from rollout_contract.presets.mis import MisOptions
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered
from rollout_contract.presets.recipe import AdvantageRule, Critic, Entropy, KLInLoss, KLInReward, Recipe

_REINFORCE = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


class MegatronFlags(MisOptions, TrainerOptions):
    """Flags, with or without ``--``. A flag that disables something is given as ``True``."""

    unrelated: ClassVar[tuple[str, ...]] = (
        "actor_*", "critic_num_*", "critic_load", "critic_save", "critic_lr*", "num_critic_only_steps", "rollout_*",
        "colocate", "offload*", "sglang_*", "wandb_*", "use_wandb", "tb_*", "use_tensorboard", "mlflow_*", "use_mlflow",
        "eval_*", "save*", "load", "load_debug*", "ref_load", "ref_ckpt_step", "ref_update_interval", "hf_checkpoint",
        "async_save", "no_save_*", "no_load_*", "prompt_data", "input_key", "label_key", "metadata_key",
        "apply_chat_template*", "num_rollout", "num_epoch", "n_samples_per_prompt", "global_batch_size",
        "micro_batch_size", "over_sampling_*", "dynamic_sampling_*", "partial_rollout", "balance_data", "rm_*",
        "reward_key", "custom_rm_path", "group_rm", "lr", "lr_*", "min_lr", "optimizer", "adam_*", "weight_decay",
        "clip_grad", "seed", "bf16", "fp16", "use_dynamic_batch_size", "max_tokens_per_gpu", "log_probs_*",
        "tensor_model_parallel_size", "sequence_parallel", "pipeline_model_parallel_size", "context_parallel_size",
        "expert_*", "recompute_*", "attention_*", "accumulate_allreduce_grads_in_fp32", "hidden_dropout", "debug_*",
        "train_backend", "qkv_format", "dump_details", "opd_teacher_*", "opd_type", "use_rollout_entropy",
        "observe_training_entropy", "get_mismatch_metrics", "reset_optimizer_states", "use_routing_replay",
        "use_rollout_routing_replay", "ci_*", "log_*", "skip_actor_forward_only", "num_steps_per_rollout",
    )  # fmt: skip
    log_ratio_bound: ClassVar[float | None]

    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    eps_clip: NonNegativeFloat = 0.2
    eps_clip_high: NonNegativeFloat | None = None
    eps_clip_c: float | None = Field(None, gt=1.0)
    value_clip: PositiveFloat = 0.2
    calculate_per_token_loss: bool = False
    custom_pg_loss_reducer_function_path: str | None = None
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    use_unbiased_kl: bool = False
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    use_tis: bool = False
    tis_clip: PositiveFloat = 2.0
    tis_clip_low: NonNegativeFloat = 0.0
    custom_tis_function_path: str | None = None
    use_rollout_logprobs: bool = False
    use_opsm: bool = False
    opsm_delta: NonNegativeFloat = 1e-4
    gamma: float = Field(1.0, ge=0.0, le=1.0)
    lambd: float = Field(1.0, ge=0.0, le=1.0)
    normalize_advantages: bool = False
    disable_grpo_std_normalization: bool = False
    disable_rewards_normalization: bool = False
    disable_compute_advantages_and_returns: bool = False
    use_opd: bool = False
    opd_kl_coef: NonNegativeFloat = 1.0
    opd_log_prob_top_k: int = Field(0, ge=0)

    @property
    @abstractmethod
    def estimator(self) -> str:
        """``--advantage-estimator``."""

    @abstractmethod
    def policy_objective(self) -> Objective:
        """The objective without OPSM."""

    @property
    def clip(self) -> dict[str, float | None]:
        high = self.eps_clip if self.eps_clip_high is None else self.eps_clip_high
        bounds = {"clip_low": self.eps_clip, "clip_high": high}
        return bounds | {"dual_clip": self.eps_clip_c, "log_ratio_bound": self.log_ratio_bound}

    def refusals(self) -> Iterator[Violation]:
        if self.loss_type == "custom_loss":
            yield not_covered("loss_type", "custom_loss", "the loss is code of yours", "see docs/extending.md")
        if self.custom_pg_loss_reducer_function_path is not None:
            why, hint = "the denominators are code of yours", "Aggregation(mode='constant', ...) is Dr.GRPO's"
            found = self.custom_pg_loss_reducer_function_path
            yield not_covered("custom_pg_loss_reducer_function_path", found, why, hint)
        if self.kl_coef != 0 and self.kl_loss_coef != 0:
            yield contradiction("kl_coef", self.kl_coef, f"0, or kl_loss_coef=0 in place of {self.kl_loss_coef}")
        if self.use_rollout_logprobs and self.use_tis:
            expected = "False: the ratio is taken against the sampler already"
            yield contradiction("use_tis", True, expected, "drop one of use_tis and use_rollout_logprobs")
        yield from self._estimator_refusals()
        yield from self._correction_refusals()

    def _estimator_refusals(self) -> Iterator[Violation]:
        if self.estimator in _REINFORCE and not self.normalize_advantages:
            yield contradiction("normalize_advantages", False, f"True for advantage_estimator={self.estimator}")
        if self.estimator == "reinforce_plus_plus_baseline" and self.kl_coef:
            why = "the KL of each token is taken off before the whitening"
            yield not_covered("kl_coef", self.kl_coef, why, "whiten(batch, dr_grpo(batch) - kl_coef * kl)")
        if self.use_opd and self.opd_log_prob_top_k:
            why = "a KL over several outcomes is a constant for the sampled token: its expected gradient is 0"
            hint = "distillation_loss(batch, TopKReverseKL(...)) is the same divergence, as a loss"
            yield not_covered("opd_log_prob_top_k", self.opd_log_prob_top_k, why, hint)

    def _correction_refusals(self) -> Iterator[Violation]:
        known = ("vanilla_tis_function", "icepop_function", "compute_mis_weights_with_cp")
        path = self.custom_tis_function_path
        if path is not None and self.tis_function not in known:
            yield not_covered("custom_tis_function_path", path, f"a function that is known: {', '.join(known)}")
        if self.mis_is_given and self.tis_function != "compute_mis_weights_with_cp":
            expected = "custom_tis_function_path=...mis.compute_mis_weights_with_cp, which reads these options"
            yield contradiction(", ".join(sorted(self.mis_given)), "given", expected)
        if self.use_tis and self.tis_function != "compute_mis_weights_with_cp" and self.tis_clip_low > self.tis_clip:
            yield contradiction("tis_clip_low", self.tis_clip_low, f"at most tis_clip={self.tis_clip}")
        if self.use_tis and self.tis_function == "compute_mis_weights_with_cp":
            yield from self.mis_refusals()

    def recipe(self) -> Recipe:
        aggregation = Aggregation(mode="seq-mean-token-mean", count_empty=True)
        if self.calculate_per_token_loss:
            aggregation = Aggregation(mode="token-mean")
        if self.loss_type == "sft_loss":
            return Recipe(trainer=self.trainer, objective=NLL(), aggregation=aggregation)
        objective = self.policy_objective()
        return Recipe(
            trainer=self.trainer,
            objective=ProximalOPSM(objective=objective, delta=self.opsm_delta) if self.use_opsm else objective,
            aggregation=aggregation,
            correction=self._correction(),
            keep_denominators=True,
            bypass=self.use_rollout_logprobs,
            kl_loss=self._kl_loss(aggregation),
            entropy=Entropy(coefficient=self.entropy_coef, aggregation=aggregation) if self.entropy_coef else None,
            kl_reward=KLInReward(coefficient=self.kl_coef, estimator=self._estimate()) if self.kl_coef else None,
            advantages=self._advantages(),
            critic=self._critic(aggregation) if self.estimator == "ppo" else None,
            notes=tuple(self._notes()),
        )

    @property
    def tis_function(self) -> str:
        return (self.custom_tis_function_path or "vanilla_tis_function").replace(":", ".").split(".")[-1]

    def _correction(self) -> CorrectionRule | None:
        if not self.use_tis:
            return None
        if self.tis_function == "icepop_function":
            return IcePop(low=self.tis_clip_low, high=self.tis_clip, log_ratio_bound=None)
        if self.tis_function == "compute_mis_weights_with_cp":
            return self.mis_correction()
        return Truncate(low=self.tis_clip_low, high=self.tis_clip, log_ratio_bound=None)

    @abstractmethod
    def low_var_kl(self) -> LowVarKL:
        """``--kl-loss-type low_var_kl``, whose clamps differ."""

    def _estimate(self) -> SampledKL:
        kinds: dict[str, SampledKL] = {"k1": K1(), "k2": K2(), "k3": K3(), "low_var_kl": self.low_var_kl()}
        return kinds[self.kl_loss_type]

    def _kl_loss(self, aggregation: Aggregation) -> KLInLoss | None:
        if not self.use_kl_loss or not self.kl_loss_coef:
            return None
        estimator: KLEstimator = self._estimate()
        if self.use_unbiased_kl:
            estimator = UnbiasedKL(estimator=self._estimate(), cut_where_clamped=False, log_weight_bound=None)
        return KLInLoss(coefficient=self.kl_loss_coef, estimator=estimator, aggregation=aggregation)

    def _critic(self, aggregation: Aggregation) -> Critic:
        return Critic(error=CriticError(clip=self.value_clip, half=False), aggregation=aggregation)

    def _advantages(self) -> AdvantageRule | None:
        if self.disable_compute_advantages_and_returns:
            return None
        name, options = self._named_estimator()
        whitens = self.normalize_advantages and not name.startswith("reinforce_plus_plus")
        return AdvantageRule(
            estimator=name,
            options=options,
            distillation=self.opd_kl_coef if self.use_opd else None,
            whitening=Whitening() if whitens else None,
        )

    def _named_estimator(self) -> tuple[str, dict[str, object]]:
        if self.estimator == "ppo":
            return "gae", {"gamma": self.gamma, "lam": self.lambd}
        if self.estimator == "reinforce_plus_plus":
            # A teacher's KL is taken off before the whitening.
            name = "discounted_returns" if self.use_opd else "reinforce_plus_plus"
            return name, {"gamma": self.gamma, "masked": "step"}
        if self.estimator == "reinforce_plus_plus_baseline":
            return "reinforce_plus_plus_baseline", {}
        if self.disable_rewards_normalization:
            return "raw_reward", {}
        return ("dr_grpo" if self.disable_grpo_std_normalization else "grpo"), {}

    def _notes(self) -> Iterator[str]:
        if self.use_rollout_logprobs:
            yield "give the sampler's log-probs as old_log_probs"
        sequences = self.estimator == "gspo" or self.use_opsm
        if sequences and self.use_tis and self.mis_is_given and self.mis_rejects_tokens:
            yield f"means of log-ratios over a sequence leave out the rejected tokens; {self.trainer} counts them there"
        if self.kl_coef and self.estimator in ("ppo", "reinforce_plus_plus"):
            yield "take the KL off the token rewards before the advantages (rollout_contract.kl_reward)"
