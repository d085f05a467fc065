"""Advantages over token rewards, with the KL in the reward where the options put it, against the trainers' records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.advantages import discounted_returns, place_rewards
from rollout_contract.presets import Recipe, preset
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import GAEBatch, RewardBatch, TokenRewardBatch
from tests.conformance.harness import Vector, vectors


def options_of(vector: Vector) -> dict[str, Any] | None:
    name, params = vector.id.split("/", 2)[2], vector.params
    given = {option: params[key] for option, key in (("gamma", "gamma"), ("lam", "lam")) if key in params}
    if vector.system == "verl" and name.startswith("gae/"):
        return {"adv_estimator": "gae"} | given
    if vector.system == "skyrl" and name == "reinforce_pp/advantages":
        return {"advantage_estimator": "reinforce++", "gamma": params["gamma"]}
    if vector.system == "miles" and name.startswith("ppo/"):
        options = {"--advantage-estimator": "ppo", "--kl-coef": params["kl_coef"], "--gamma": params["gamma"]}
        return options | {"--lambd": params["lam"], "--normalize-advantages": "whiten" in params}
    if vector.system in ("miles", "slime") and name.split("/")[0] == "grpo":
        return {"--disable-rewards-normalization": True, "--normalize-advantages": "whiten" in params}
    if vector.system == "nemorl" and params["estimator"] == "nemo_gae":
        return nemo_options(params)
    if vector.system == "openrlhf" and name.startswith("pipeline/") and name != "pipeline/reinforce_baseline":
        shared = {"--gamma": params["gamma"], "--lambd": params["lam"], "--init_kl_coef": params["kl_coef"]}
        return shared | {"--advantage_estimator": name.split("/")[1]}
    return None


def nemo_options(params: dict[str, Any]) -> dict[str, Any]:
    names = {
        "gae_gamma": "gamma",
        "gae_lambda": "lam",
        "gae_lambda_value": "lam_value",
        "gae_lambda_policy": "lam_policy",
        "length_adaptive_alpha": "length_alpha",
    }
    estimator = {option: params[key] for option, key in names.items()}
    estimator |= {"name": "gae", "normalize_advantages": params["whiten"] is not None}
    loss = {"use_kl_in_reward": True, "reference_policy_kl_type": params["kl"]}
    loss |= {"reference_policy_kl_penalty": params["kl_coef"]}
    return {"grpo": {"adv_estimator": estimator}, "loss_fn": loss}


RECORDS = [vector for vector in vectors("advantage") if options_of(vector) is not None]


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector.id)
def test_token_rewards(vector: Vector) -> None:
    options = options_of(vector)
    recipe = preset("nemo-rl" if vector.system == "nemorl" else vector.system, options)
    rows = vector.params.get("rows", len(vector.tensor("mask")))
    mask = vector.tensor("mask").bool()[:rows]
    found = advantages_of(recipe, vector, mask, rows)[vector.params.get("output", "advantages") == "returns"]
    wanted = torch.tensor(vector.entry["value"], dtype=torch.float64)
    bound = vector.entry["atol"] + vector.entry["tolerance"] * wanted.abs()
    assert not (((found.unflatten(0, tuple(mask.shape)) - wanted).abs() > bound) & mask).any()


def advantages_of(recipe: Recipe, vector: Vector, mask: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    rule = recipe.advantages
    assert rule is not None
    size = vector.params.get("group_size")
    fields: dict[str, Any] = {"response_lengths": [mask.shape[1]] * rows, "loss_mask": mask.flatten()}
    fields |= {} if size is None else {"group_ids": [row // size for row in range(rows)]}
    penalty = penalty_of(recipe, vector, RolloutBatch(**fields), rows)
    if issubclass(rule.reads, RewardBatch):
        batch = rule.reads(**fields, rewards=vector.tensor("rewards")[:rows])
        to_go = discounted_returns(TokenRewardBatch(**fields, token_rewards=penalty), masked="step")
        found = rule(batch)
        return found.advantages - to_go, found.returns
    if vector.has("token_rewards"):
        rewards = vector.tensor("token_rewards")[:rows].flatten()
    else:
        rewards = place_rewards(RewardBatch(**fields, rewards=vector.tensor("rewards")[:rows]))
    fields["token_rewards"] = rewards - penalty
    if issubclass(rule.reads, GAEBatch):
        fields["values"] = vector.tensor("values")[:rows].flatten()
    found = rule(rule.reads(**fields))
    return found.advantages, found.returns


def penalty_of(recipe: Recipe, vector: Vector, batch: RolloutBatch, rows: int) -> Tensor:
    """[tokens] what the recipe takes off the token rewards; a record holds the KL, or the scores that it compares."""
    if recipe.kl_reward is None:
        return torch.zeros(batch.layout.num_tokens, dtype=torch.float64)
    if vector.has("kl"):
        kl = vector.tensor("kl")[:rows].flatten()
    else:
        kl = recipe.kl_reward.estimator.value((vector.tensor("old") - vector.tensor("reference"))[:rows].flatten())
    assert isinstance(recipe.kl_reward.coefficient, float)
    return recipe.kl_reward.coefficient * kl.where(batch.loss_mask, 0.0)
