"""What a GRPOConfig amounts to: the terms of its loss, the schema that they read, and its denominators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jaxtyping import Bool
from torch import Tensor
from transformers import TrainingArguments
from trl.trainer.grpo_config import GRPOConfig

from rollout_contract.aggregation import Aggregation
from rollout_contract.objectives import OPSM, Objective, ProximalOPSM, TopEntropy
from rollout_contract.objectives.filtered import Filtered
from rollout_contract.presets import preset
from rollout_contract.presets.recipe import Recipe, combined
from rollout_contract.roles import Fixed
from rollout_contract.schemas import EntropyBatch, ObservedEntropyBatch, PolicyBatch, TISBatch

OF_THE_WINDOW = ("dapo", "cispo", "vespo")
"""Losses that TRL divides by the tokens of the whole accumulation window; the others take each micro-batch alone."""

_OF_THE_MODEL = ("router_aux_loss_coef",)
"""Options of a loss that the model makes itself, without the batch; the trainer adds it as TRL does."""


class GRPOStep(PolicyBatch, ObservedEntropyBatch):
    """What every micro-batch of TRL holds."""


class SampledStep(GRPOStep, TISBatch):
    """With the sampler's log-probs, and the tokens that it could not score."""

    unscored: Fixed[Bool[Tensor, "tokens"]]


class EntropyStep(GRPOStep, EntropyBatch):
    """With a live entropy."""


def options_of(args: GRPOConfig) -> dict[str, Any]:
    """Every option that GRPOConfig has beyond TrainingArguments, so that one of a later TRL is not overlooked."""
    shared = {field.name for field in dataclasses.fields(TrainingArguments)}
    own = [field.name for field in dataclasses.fields(GRPOConfig) if field.name not in shared]
    values = {name: getattr(args, name) for name in own if name not in _OF_THE_MODEL}
    # A mapping would read as options of its own, and no option of the loss is one.
    return {name: value for name, value in values.items() if not isinstance(value, Mapping)}


class Configuration:
    """The loss of a trainer with these arguments.

    Attributes:
        recipe: what the preset makes of them.

    Raises:
        OptionError: an option that decides about the loss is not covered, or contradicts another.
    """

    def __init__(self, args: GRPOConfig) -> None:
        self.recipe: Recipe = preset("trl", options_of(args), unrelated="ignore")
        self.loss_type: str = args.loss_type
        self.steps_per_generation: int = args.steps_per_generation or 1

    @property
    def entropy_coefficient(self) -> float:
        return 0.0 if self.recipe.entropy is None else self.recipe.entropy.coefficient

    @property
    def objective(self) -> Objective:
        """The policy objective without the filters around it."""
        objective = self.recipe.objective
        while isinstance(objective, Filtered):
            objective = objective.objective
        return objective

    @property
    def reads_other_ranks(self) -> bool:
        """Whether TRL looks at the tokens of all ranks to choose those of one."""
        return isinstance(self.recipe.objective, TopEntropy)

    def terms(self, has_rollout: bool) -> Recipe:
        """Policy and KL. Importance weights come with TRL's inputs; the entropy has denominators of its own."""
        return self._terms_from_rollout if has_rollout else self._terms

    @cached_property
    def _terms(self) -> Recipe:
        return self.recipe.model_copy(update={"correction": None, "entropy": None})

    @cached_property
    def _terms_from_rollout(self) -> Recipe:
        return self._terms.model_copy(update={"objective": _anchored_at_rollout(self._terms.objective)})

    def schema(self, has_rollout: bool) -> type[GRPOStep]:
        """What a step has to hold."""
        optional: list[type[GRPOStep]] = [SampledStep] if has_rollout else []
        optional += [EntropyStep] if self.entropy_coefficient else []
        return combined((GRPOStep, *optional, *self.terms(has_rollout).schemas))

    def entropy_aggregation(self, accumulation: int) -> Aggregation:
        """TRL takes the mean of each micro-batch, whatever the denominators of the policy loss."""
        return Aggregation(mode="token-mean", scale=1.0 / accumulation)

    def denominator(self, inputs: Mapping[str, Any], num_processes: int, is_training: bool) -> Tensor | None:
        """Tokens of an average micro-batch of one rank, where the loss type asks for them.

        TRL counts the generation batch over all ranks. In evaluation a batch is not split.
        """
        if self.loss_type not in OF_THE_WINDOW:
            return None
        counted: Tensor = inputs["num_items_in_batch"]
        parts = num_processes * (self.steps_per_generation if is_training else 1)
        return counted.clamp(min=1.0) / parts


def _anchored_at_rollout(objective: Objective) -> Objective:
    """Off-policy masking measured from the sampler, as TRL does whenever it has the sampler's log-probs."""
    if isinstance(objective, ProximalOPSM):
        return OPSM(objective=objective.objective, delta=objective.delta)
    if isinstance(objective, TopEntropy):
        return objective.model_copy(update={"objective": _anchored_at_rollout(objective.objective)})
    return objective
