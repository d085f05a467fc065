"""KL terms in the loss and in the reward, against the records of the trainers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import kl
from rollout_contract.advantages.rewards import place_rewards
from rollout_contract.kl_reward import penalised_rewards
from rollout_contract.losses.kl import kl_loss
from rollout_contract.schemas import (
    BehaviourKLBatch,
    KLBatch,
    KLRewardBatch,
    RewardBatch,
    ScoredKLBatch,
)
from tests.conformance.harness import Vector, vectors
from tests.conformance.scored import build, flat, gradient, live, tensor, weighted

ESTIMATORS: dict[str, type[kl.SampledKL]] = {
    "k1": kl.K1,
    "k2": kl.K2,
    "k3": kl.K3,
    "low_var_kl": kl.LowVarKL,
    "abs": kl.AbsoluteKL,
}
CUTS_WEIGHT = {"nemorl"}
"""Systems that make the importance weight a constant where the input clamp bites."""


def estimator_of(vector: Vector, params: dict[str, Any]) -> tuple[Any, type[KLBatch]]:
    plain = ESTIMATORS[params["estimator"]](input_bound=params["in_clamp"], output_bound=params["out_clamp"])
    if params.get("straight_through"):
        assert params["straight_through"] == "k2"
        return kl.StraightThroughKL(estimator=plain), KLBatch
    options: dict[str, Any] = {
        "estimator": plain,
        "cut_where_clamped": vector.system in CUTS_WEIGHT,
        "log_weight_bound": None,
    }
    match params["weight"]:
        case "none":
            return plain, KLBatch
        case "ratio":
            return kl.UnbiasedKL(**options), ScoredKLBatch
        case "seq_ratio":
            return kl.UnbiasedKL(**options, level="sequence"), ScoredKLBatch
        case "score":
            return kl.ScoreFunctionKL(**options), KLBatch
        case "behaviour_ratio":
            return kl.BehaviourKL(**options), BehaviourKLBatch
    raise AssertionError(params["weight"])


def fixed_fields(vector: Vector) -> dict[str, Tensor]:
    roles = {"reference": "ref_log_probs", "old": "old_log_probs", "behaviour": "rollout_log_probs"}
    return {field: tensor(vector, role) for role, field in roles.items() if vector.has(role)}


def check_loss(vector: Vector) -> None:
    params = vector.params
    estimator, schema = estimator_of(vector, params)
    log_probs, mask = live(vector, "logprob"), tensor(vector, "mask")
    batch = build(schema, mask, **fixed_fields(vector)).bind(log_probs=flat(log_probs))
    with warnings.catch_warnings():
        if isinstance(estimator, kl.K1):
            warnings.simplefilter("ignore", UserWarning)
        if params["aggregation"]["mode"] == "none":
            value = estimator.terms(batch).loss.view(mask.shape)
        else:
            value = kl_loss(weighted(batch, params["aggregation"]), estimator).value
    vector.check(value, gradient(value, log_probs))


def check_reward(vector: Vector) -> None:
    """Both systems penalise masked columns too, so no column is masked out of the penalty's batch."""
    if vector.params["form"] == "reward":
        rewards, old, ref = (tensor(vector, role) for role in ("token_rewards", "old", "reference"))
    else:
        mask, kl_values = tensor(vector, "mask"), tensor(vector, "kl")
        lengths = [mask.shape[1]] * mask.shape[0]
        outcome = RewardBatch(response_lengths=lengths, loss_mask=flat(mask), rewards=tensor(vector, "rewards"))
        rewards = place_rewards(outcome).view(mask.shape)
        # The record gives the difference of two log-probs; any pair with that difference stands for it.
        old, ref = kl_values.clamp(max=0.0), (-kl_values).clamp(max=0.0)
    everywhere = torch.ones_like(rewards)
    batch = build(KLRewardBatch, everywhere, token_rewards=rewards, old_log_probs=old, ref_log_probs=ref)
    value = penalised_rewards(batch, vector.params["kl_coef"])
    assert not value.requires_grad
    vector.check(value.view(rewards.shape))


@pytest.mark.parametrize("vector", vectors("kl"), ids=lambda vector: vector.id)
def test_kl(vector: Vector) -> None:
    if vector.params.get("form", "").startswith("reward"):
        check_reward(vector)
    else:
        check_loss(vector)
