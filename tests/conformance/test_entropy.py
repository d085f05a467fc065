"""Entropy from logits, as a loss and as a bonus, against the records of the trainers."""

from __future__ import annotations

import pytest
from torch import Tensor

from rollout_contract.losses.entropy import entropy_bonus
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import EntropyBatch, PolicyBatch
from tests.conformance.harness import Vector, vectors
from tests.conformance.scored import build, flat, gradient, live, tensor, weighted
from tests.conformance.test_logprob import scores_of


def bonus(mask: Tensor, entropy: Tensor, aggregation: dict[str, object]) -> Tensor:
    """The weighted entropy of padded entries."""
    batch = weighted(build(EntropyBatch, mask), aggregation).bind(entropy=flat(entropy))
    return entropy_bonus(batch).value


def check_bonus(vector: Vector) -> None:
    """A policy loss minus an entropy bonus, each with its own aggregation."""
    params, mask = vector.params, tensor(vector, "mask")
    assert params["objective"] == "ppo_clip"
    objective = PPOClip(
        clip_low=params["eps_low"],
        clip_high=params["eps_high"],
        dual_clip=params["dual_clip"],
        log_ratio_bound=params["log_ratio_clamp"],
    )
    advantages = tensor(vector, "advantages")
    advantages = advantages if advantages.dim() == 2 else advantages[:, None].expand(mask.shape)
    batch = build(PolicyBatch, mask, old_log_probs=tensor(vector, "old"), advantages=advantages)
    batch = weighted(batch, params["aggregation"]).bind(log_probs=flat(live(vector, "logprob")))
    entropy = live(vector, "entropy")
    value = policy_loss(batch, objective).value
    value = value - params["entropy_coef"] * bonus(mask, entropy, params["entropy_aggregation"])
    vector.check(value, gradient(value, entropy))


@pytest.mark.parametrize("vector", vectors("entropy"), ids=lambda vector: vector.id)
def test_entropy(vector: Vector) -> None:
    if "objective" in vector.params:
        check_bonus(vector)
        return
    role = next((role for role, name in vector.roles.items() if name == vector.entry["wrt"]), "")
    leaf = live(vector, role) if role else None
    shape = tensor(vector, next(iter(vector.roles))).shape[:2]
    value = scores_of(vector, leaf, role).entropy.view(shape)
    if "aggregation" in vector.params:
        value = bonus(tensor(vector, "mask"), value, vector.params["aggregation"])
    vector.check(value, None if leaf is None else gradient(value, leaf))
