"""prime-rl's trainer ``loss`` and orchestrator ``algo``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat

from rollout_contract.aggregation import Aggregation
from rollout_contract.errors import Violation
from rollout_contract.objectives import DPPO, NLL, Objective, ProbabilityMask, RolloutReverseKL
from rollout_contract.presets.options import TrainerOptions, contradiction, not_covered, option
from rollout_contract.presets.recipe import AdvantageRule, Recipe

_DEFAULT_ONLY = ("dppo_mask_low", "dppo_mask_high")


class PrimeRLOptions(TrainerOptions):
    """Of ``DefaultLossConfig``, ``IPOLossConfig`` and the algorithms."""

    trainer: ClassVar[str] = "prime-rl"
    version: ClassVar[str] = "559b44772"
    unrelated: ClassVar[tuple[str, ...]] = (
        "model.*", "tokenizer.*", "data.*", "optim.*", "scheduler.*", "ckpt.*", "weight_broadcast.*", "wandb.*",
        "log.*", "rollout_transport.*", "output_dir", "max_steps", "max_async_level", "bench.*", "client.*", "env.*",
        "eval.*", "sampling.*", "buffer.*", "batch_size", "rollouts_per_example", "seq_len", "seed", "algo.sampling.*",
    )  # fmt: skip

    loss_type: Literal["default", "ipo", "custom"] = option("loss.type", "default")
    dppo_mask_low: NonNegativeFloat = option("loss.dppo_mask_low", 0.2)
    dppo_mask_high: NonNegativeFloat = option("loss.dppo_mask_high", 0.2)
    ipo_threshold: NonNegativeFloat = option("loss.ipo_threshold", 0.1)
    adv_tau: NonNegativeFloat = option("loss.adv_tau", 1.0)
    kl_tau: NonNegativeFloat = option("loss.kl_tau", 1e-3)
    algo_type: Literal["grpo", "max_rl", "rae", "hierarchical_grpo", "opd", "opsd", "sft", "echo"] = option(
        "algo.type", "grpo"
    )
    decay: float = option("algo.decay", 0.95, ge=0.0, lt=1.0)
    length_penalty: Literal["tokens", "turns"] | None = option("algo.length_penalty.type", None)
    completion_weight: NonNegativeFloat = option("algo.length_penalty.completion_weight", 1.0)
    tool_response_weight: NonNegativeFloat = option("algo.length_penalty.tool_response_weight", 1.0)

    def refusals(self) -> Iterator[Violation]:
        given = self.model_fields_set
        foreign = {"default": ("ipo_threshold",), "ipo": _DEFAULT_ONLY}.get(self.loss_type, ())
        for name in foreign:
            if name in given:
                yield contradiction(f"loss.{name}", getattr(self, name), f"left out with loss.type={self.loss_type}")
        if self.loss_type == "custom":
            yield not_covered("loss.type", "custom", "the loss is code of yours", "see docs/extending.md")
        if self.algo_type == "echo":
            yield not_covered("algo.type", "echo", "it also trains on tokens of the environment, by their role")
        yield from self._penalty_refusals()

    def _penalty_refusals(self) -> Iterator[Violation]:
        weights = self.model_fields_set & {"completion_weight", "tool_response_weight"}
        if self.length_penalty is None:
            for name in sorted(weights):
                expected = "left out without algo.length_penalty.type"
                yield contradiction(f"algo.length_penalty.{name}", getattr(self, name), expected)
        elif self.algo_type != "grpo":
            yield contradiction(
                "algo.length_penalty.type", self.length_penalty, f"none with algo.type={self.algo_type}"
            )
        elif self.length_penalty == "turns":
            yield not_covered("algo.length_penalty.type", "turns", "the cost of a sample is its number of turns")
        elif self.completion_weight == 0.0:
            yield not_covered("algo.length_penalty.completion_weight", 0.0, "only tool responses would cost")

    def recipe(self) -> Recipe:
        return Recipe(
            trainer=self.trainer,
            objective=self._objective(),
            aggregation=Aggregation(mode="token-mean"),
            advantages=self._advantages(),
            notes=tuple(self._notes()),
        )

    def _objective(self) -> Objective:
        if self.algo_type == "sft":
            return NLL()
        if self.algo_type in ("opd", "opsd"):
            return RolloutReverseKL(delta_low=0.2, drift=1e-3, log_ratio_bound=None)
        if self.loss_type == "ipo":
            return ProbabilityMask(delta=self.ipo_threshold, drift=self.kl_tau, log_ratio_bound=None)
        low, high = self.dppo_mask_low, self.dppo_mask_high
        return DPPO(delta_low=low, delta_high=high, drift=self.kl_tau, log_ratio_bound=None)

    def _advantages(self) -> AdvantageRule | None:
        names = {"grpo": "dr_grpo", "hierarchical_grpo": "dr_grpo", "max_rl": "max_rl", "rae": "role_conditioned"}
        if self.algo_type not in names:
            return None
        name = "length_shaped_grpo" if self.length_penalty is not None else names[self.algo_type]
        options: dict[str, Any] = {"decay": self.decay} if name == "role_conditioned" else {}
        if name == "length_shaped_grpo":
            # Only the ratio of the costs counts: the bonus compares them with their mean.
            options = {"tool_token_cost": self.tool_response_weight / self.completion_weight}
        return AdvantageRule(estimator=name, options=options, scale=self.adv_tau)

    def _notes(self) -> Iterator[str]:
        if self.adv_tau != 1.0:
            yield f"advantages are multiplied by adv_tau={self.adv_tau:g}; recipe.advantages does so"
        if self.algo_type == "rae":
            yield "role_conditioned carries its baselines from step to step: call it yourself"
        if self.algo_type == "hierarchical_grpo":
            yield "give each role of a comparison its own group id"
