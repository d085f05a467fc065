"""Presets give the losses and gradients of the trainers: every record that the trainer's own options can say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.corrections import Correction
from rollout_contract.objectives import ClipCov, Objective, TopEntropy
from rollout_contract.presets import OptionError, Recipe, preset
from tests.conformance.harness import Vector, vectors
from tests.conformance.policy_objectives import DrawnClipCov, Float32TopEntropy
from tests.conformance.test_policy import Case
from tests.presets.said import CannotBeSaid, options_of

UNSAID = {
    "verl/policy/bypass/ppo_clip": "live policy",
    "liger/policy/luspo": "padded width",
    "openrlhf/policy/ppo/dual=none/seq_mean": "always takes the token mean",
    "openrlhf/policy/ppo/dual=wide/seq_mean": "always takes the token mean",
    "openrlhf/policy/ppo/dual=tight/seq_mean": "always takes the token mean",
    "primerl/policy/default/weighted": "weights per token",
    "nemorl/policy/nll": "another program",
}
"""Records of functions that are called as no option calls them, and why."""

CORRECTED = [
    vector for vector in vectors("correction") if "correction" in vector.params or "opsm_anchor" in vector.params
]


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
@pytest.mark.parametrize("vector", vectors("policy"), ids=lambda vector: vector.id)
def test_policy_records(vector: Vector) -> None:
    if vector.id in UNSAID:
        with pytest.raises(CannotBeSaid, match=UNSAID[vector.id]):
            options_of(vector)
    else:
        check(vector)


@pytest.mark.parametrize("vector", CORRECTED, ids=lambda vector: vector.id)
def test_correction_records(vector: Vector) -> None:
    spec = vector.params.get("correction", {})
    if spec.get("action") == "clamp" and spec["high"] <= 0:
        with pytest.raises(OptionError, match="the weight would be negative"):
            preset(*options_of(vector))
        return
    check(vector)


def check(vector: Vector) -> None:
    case = PresetCase(vector)
    value = case.value()
    (gradient,) = torch.autograd.grad(value.sum(), case.leaf)
    vector.check(value, gradient)


class PresetCase(Case):
    """A record whose objective, denominators and terms all come from a preset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recipe: Recipe = preset(*options_of(self.vector))
        self.objective = recorded(self.recipe.objective, self.params, self.mask_rows.shape[1])
        self.recipe = self.recipe.model_copy(update={"objective": self.objective})

    def value(self) -> Tensor:
        fields: dict[str, Any] = self.fields
        if "rejection" in self.params:
            fields["old_log_probs"] = self.log_probs.detach()
        step = self.step(self.packed("mask").bool(), *self.recipe.schemas)
        if self.vector.has("is_weights"):
            step = step.corrected(Correction(step, weights=self.packed("is_weights")))
        step = self.recipe.prepare(step, scale=self.scale(step))
        live = {"log_probs": self.log_probs}
        if self.recipe.entropy is not None:
            live["entropy"] = self.entropy if self.entropy.requires_grad else self.entropy.requires_grad_()
        if self.params["aggregation"]["mode"] == "none":
            return self.layout.pad(self.objective.terms(step.bind(**live)).loss)
        return self.recipe.loss(step.bind(**live)).value

    def scale(self, step: Any) -> float:
        """Records of sums are those of means times the count; others have a count of their own."""
        spec = self.params["aggregation"]
        tokens, samples = int(step.loss_mask.sum()), len(step)
        filled = int((self.mask_rows.sum(1) > 0).sum())
        counted = samples if self.recipe.aggregation.count_empty else filled
        if spec["mode"] in ("sum", "sum_seq_token_mean"):
            return tokens if spec["mode"] == "sum" else samples
        denominator = spec.get("denominator")
        if isinstance(denominator, float):
            eps = spec.get("denom_eps", spec.get("eps")) or 0.0
            return (tokens if spec["mode"] == "token_mean" else counted) / (denominator + eps)
        return counted / filled if denominator == "nonempty" else 1.0


def recorded(objective: Objective, params: dict[str, Any], width: int) -> Objective:
    """The objective with the random draw, or the rounding, of a record."""
    if isinstance(objective, ClipCov):
        flat = {
            name: tuple(sorted(row * width + column for row, column in params[theirs]))
            for name, theirs in (("recorded_candidates", "candidates"), ("recorded_draw", "dropped_positions"))
        }
        return DrawnClipCov(**objective.model_dump(), **flat)
    if isinstance(objective, TopEntropy):
        return Float32TopEntropy(objective=objective.objective, fraction=objective.fraction)
    return objective
