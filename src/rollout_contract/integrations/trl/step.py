"""One micro-batch of TRL: pack, build, weigh, bind; then the losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rollout_contract.errors import Violation, violation_error
from rollout_contract.integrations.trl.configuration import Configuration, GRPOStep
from rollout_contract.integrations.trl.inputs import given, layout_of, lookup, packed, trained_tokens
from rollout_contract.losses.entropy import entropy_bonus
from rollout_contract.losses.loss import Loss
from rollout_contract.schemas import EntropyBatch

_FIXED = ("advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs")


class Forward(NamedTuple):
    """What the current policy gave: [batch, width] log-probs and entropies of the completions, live."""

    log_probs: Tensor
    entropy: Tensor


class Window(NamedTuple):
    """What a micro-batch has to know about the step that it is a part of.

    Attributes:
        accumulation: micro-batches in the accumulation window.
        denominator: of the policy loss, where it is not counted in the micro-batch.
        is_corrected: whether the importance weights in TRL's inputs count.
    """

    accumulation: int
    denominator: Tensor | None
    is_corrected: bool


class Losses(NamedTuple):
    """``policy``: policy objective and KL, which TRL calls the policy loss. ``total``: with the entropy bonus."""

    policy: Loss
    total: Loss


def bound_step(configuration: Configuration, inputs: Mapping[str, Any], forward: Forward, window: Window) -> GRPOStep:
    """The batch of one micro-batch, ready for its losses. One gather per live field, and no synchronisation."""
    layout, has_rollout = layout_of(inputs), lookup(inputs, "rollout_log_probs") is not None
    schema, recipe = configuration.schema(has_rollout), configuration.terms(has_rollout)
    log_probs = packed("log_probs", forward.log_probs, layout)
    entropy = packed("entropy", forward.entropy, layout)
    mask = packed("loss_mask", trained_tokens(inputs), layout)
    fields: dict[str, Any] = {"loss_mask": mask, "observed_entropy": entropy.detach()}
    fields |= given(inputs, _wanted(schema, window), layout)
    if window.is_corrected and configuration.loss_type != "vespo" and "correction_weights" not in fields:
        expected = "importance ratios, which vllm_importance_sampling_correction asks for"
        wrong = Violation("correction_weights", "missing", expected, "nothing")
        raise violation_error(schema.__name__, wrong)
    # The first update after generation: the policy that is trained is the one that is scored.
    fields.setdefault("old_log_probs", log_probs.detach())
    if has_rollout:
        fields |= _scored_everywhere(fields)
    step = schema(response_lengths=layout.response_lengths, **fields)
    step = recipe.prepare(step, denominator=window.denominator, scale=1.0 / window.accumulation)
    live = {"entropy": entropy} if configuration.entropy_coefficient else {}
    return step.bind(log_probs=log_probs, **live)


def _wanted(schema: type[GRPOStep], window: Window) -> tuple[str, ...]:
    fixed = tuple(name for name in _FIXED if name in schema.__plan__)
    return (*fixed, "correction_weights") if window.is_corrected else fixed


def _scored_everywhere(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sampler's log-probs with the trainer's own where it had none: such a token is not corrected."""
    rollout = fields["rollout_log_probs"]
    missing = torch.isnan(rollout)
    return {
        "rollout_log_probs": torch.where(missing, fields["old_log_probs"].detach(), rollout),
        "unscored": missing,
    }


def losses(configuration: Configuration, step: GRPOStep, window: Window) -> Losses:
    """The losses that the configuration amounts to."""
    policy = configuration.terms(step.has("rollout_log_probs")).loss(step)
    if not configuration.entropy_coefficient:
        return Losses(policy, policy)
    watched = cast("EntropyBatch", step.weighted(configuration.entropy_aggregation(window.accumulation)))
    return Losses(policy, policy - configuration.entropy_coefficient * entropy_bonus(watched))
