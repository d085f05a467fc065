"""Presets give the corrections, KL terms, critics and advantages of the trainers' records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.corrections import CorrectionRule
from rollout_contract.kl import ScoreFunctionKL, StraightThroughKL
from rollout_contract.presets import KLInLoss, preset
from rollout_contract.schemas import (
    GAEBatch,
    OTBBatch,
    ReMaxBatch,
    RewardBatch,
    RewardComponentsBatch,
    TokenRewardBatch,
)
from tests.conformance.advantage_systems import groups_of, mask_of, rewards_of
from tests.conformance.harness import Vector, vectors
from tests.conformance.policy_objectives import kl_of
from tests.conformance.rollout_steps import step_of

# -- corrections -------------------------------------------------------------------------------------------------------

MIS = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"


def miles_options(params: dict[str, Any]) -> dict[str, Any]:
    options = {"--use-tis": True, "--custom-tis-function-path": MIS}
    bounds = {"tis_lower_bound": params["low"], "tis_upper_bound": params["high"]}
    if "veto" not in params:
        names = {"tis_level": "level", "tis_mode": "mode", "tis_batch_normalize": "batch_normalize"}
        return options | bounds | {option: params[name] for option, name in names.items()}
    rejection = {"use_rs": True, "rs_level": params["level"], "rs_veto_threshold": params["veto"]}
    return options | rejection | {"rs_lower_bound": params["low"], "rs_upper_bound": params["high"]}


def verl_options(params: dict[str, Any]) -> dict[str, Any]:
    if params["what"] == "weights":
        names = {"rollout_is": "level", "rollout_is_threshold": "high", "rollout_is_batch_normalize": "batch_normalize"}
        return {option: params[name] for option, name in names.items()}
    low, high = params["low"], params["high"]
    thresholds = [f"{high}" if low is None else f"{low}_{high}"]
    thresholds += [f"{params['high2']}"] if "high2" in params else []
    return {"rollout_rs": params["option"], "rollout_rs_threshold": ",".join(thresholds)}


CORRECTIONS = [
    vector
    for vector in vectors("correction")
    if vector.system in ("miles", "verl") and vector.params.get("what") not in (None, "opsm_mask")
]


@pytest.mark.parametrize("vector", CORRECTIONS, ids=lambda vector: vector.id)
def test_corrections(vector: Vector) -> None:
    options = (miles_options if vector.system == "miles" else verl_options)(vector.params)
    rule = preset(vector.system, options).correction
    assert isinstance(rule, CorrectionRule)
    found = rule(step_of(vector))
    result = found.weights if vector.params["what"] == "weights" else found.mask
    assert result is not None
    vector.check(result.reshape(vector.tensor("mask").shape))


# -- KL ----------------------------------------------------------------------------------------------------------------


def kl_options(vector: Vector) -> dict[str, Any] | None:
    name = str(vector.params["estimator"])
    if vector.system in ("miles", "slime"):
        unbiased = vector.params["weight"] == "ratio"
        options = {"kl_loss_type": name, "use_unbiased_kl": unbiased}
        return options | {"use_kl_loss": True, "kl_loss_coef": 0.1}
    if vector.system == "verl":
        return {"use_kl_loss": True, "kl_loss_type": name}
    if vector.system == "openrlhf":
        return {"use_kl_loss": True, "kl_estimator": name}
    return {"kl_estimator_type": name} if vector.system == "skyrl" else None


PLAIN_KL = [vector for vector in vectors("kl") if "weight" in vector.params and kl_options(vector) is not None]


@pytest.mark.parametrize("vector", PLAIN_KL, ids=lambda vector: vector.id)
def test_kl(vector: Vector) -> None:
    params = vector.params
    found = preset(vector.system, kl_options(vector)).kl_loss
    assert isinstance(found, KLInLoss)
    if params["estimator"] == "abs":
        assert found.estimator.name == "abs"
    else:
        wanted = kl_of(params)
        assert type(found.estimator).__name__ == type(wanted).__name__
        assert found.estimator.model_dump() == wanted.model_dump()


@pytest.mark.parametrize("name", ["k1", "k3", "abs", "low_var_kl"])
def test_verl_straight_through(name: str) -> None:
    found = preset("verl", {"use_kl_loss": True, "kl_loss_type": f"{name}+"}).kl_loss
    plain = preset("verl", {"use_kl_loss": True, "kl_loss_type": name}).kl_loss
    assert found is not None
    assert plain is not None
    assert isinstance(found.estimator, StraightThroughKL)
    assert found.estimator.estimator == plain.estimator


def test_nemo_always_weights() -> None:
    found = preset("nemo-rl").kl_loss
    assert found is not None
    assert isinstance(found.estimator, ScoreFunctionKL)


# -- critics -----------------------------------------------------------------------------------------------------------


def critic_options(vector: Vector) -> dict[str, Any] | None:
    value, system = vector.params["clip"], vector.system
    if system == "verl":
        mode = {"token_mean": "token-mean"}.get(vector.params["aggregation"]["mode"], "seq-mean-token-mean")
        return {"critic.cliprange_value": value, "critic.loss_agg_mode": mode}
    if system == "areal":
        return {"critic.eps_clip": value, "critic.value_loss_type": vector.params["loss"]}
    named = {
        "miles": {"advantage_estimator": "ppo", "value_clip": value},
        "openrlhf": {"value_clip": value},
        "skyrl": {"advantage_estimator": "gae", "value_clip": value},
    }
    return named.get(system)


CRITICS = [vector for vector in vectors("value") if critic_options(vector) is not None]


@pytest.mark.parametrize("vector", CRITICS, ids=lambda vector: vector.id)
def test_critics(vector: Vector) -> None:
    params = vector.params
    critic = preset(vector.system, critic_options(vector)).critic
    assert critic is not None
    huber = params["huber_delta"] if params.get("loss") == "huber" else None
    assert (critic.error.clip, critic.error.half, critic.error.huber_delta) == (params["clip"], params["half"], huber)
    modes = {"token_mean": "token-mean"}
    wanted = modes.get(params["aggregation"]["mode"], "seq-mean-token-mean")
    assert critic.aggregation.mode == (wanted if vector.system != "openrlhf" else "token-mean")


# -- advantages --------------------------------------------------------------------------------------------------------

VERL_NAMES = {
    "grpo_nostd": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
    "rpp_baseline": {"adv_estimator": "reinforce_plus_plus_baseline"},
    "grpo_passk_nostd": {"adv_estimator": "grpo_passk", "norm_adv_by_std_in_grpo": False},
}
SKYRL_NAMES = {"grpo_nostd": {"advantage_estimator": "grpo", "grpo_norm_by_std": False}}


def advantage_options(vector: Vector) -> dict[str, Any] | None:
    name, params = vector.id.split("/")[2], vector.params
    if params.get("output", "advantages") != "advantages" or params.get("kl_coef"):
        return None
    if vector.system == "verl" and name not in ("gae", "rpp", "otb", "tir_otb", "remax"):
        return VERL_NAMES.get(name, {"adv_estimator": name})
    if vector.system == "verl" and name == "remax":
        return {"adv_estimator": "remax"}
    if vector.system == "verl" and name in ("otb", "tir_otb") and params["zero_tail"] and not vector.has("is_weights"):
        return {"adv_estimator": name.replace("otb", "optimal_token_baseline")}
    if vector.system == "skyrl" and name not in ("gae", "reinforce_pp"):
        return SKYRL_NAMES.get(name, {"advantage_estimator": name})
    if vector.system == "nemorl" and name in ("grpo", "gdpo", "raw_reward"):
        return nemo_options(vector, name)
    return None


def nemo_options(vector: Vector, name: str) -> dict[str, Any]:
    params = vector.params
    options = {"name": name, "use_leave_one_out_baseline": params.get("loo", False)}
    if name == "grpo":
        options["normalize_rewards"] = params.get("normalize", True)
    if name == "gdpo":
        options["reward_weights"] = params["weights"]
    if name == "raw_reward":
        options["normalize_advantages"] = params["whiten"] is not None
    return {"grpo": {"adv_estimator": options}}


ADVANTAGES = [vector for vector in vectors("advantage") if advantage_options(vector) is not None]


@pytest.mark.parametrize("vector", ADVANTAGES, ids=lambda vector: vector.id)
def test_advantages(vector: Vector) -> None:
    system = "nemo-rl" if vector.system == "nemorl" else vector.system
    rule = preset(system, advantage_options(vector)).advantages
    assert rule is not None
    mask = mask_of(vector)
    found = rule(advantage_batch(vector, mask, rule.reads)).advantages.unflatten(0, tuple(mask.shape))
    wanted = torch.tensor(vector.entry["value"], dtype=torch.float64)
    # What systems leave at masked tokens is never trained on; the library has 0 there.
    bound = vector.entry["atol"] + vector.entry["tolerance"] * wanted.abs()
    assert not (((found - wanted).abs() > bound) & mask).any()
    assert bool((found[~mask] == 0).all())


def advantage_batch(vector: Vector, mask: Tensor, schema: type[Any]) -> Any:
    fields: dict[str, Tensor] = {}
    if issubclass(schema, TokenRewardBatch):
        fields["token_rewards"] = vector.tensor("token_rewards").flatten()
    if issubclass(schema, RewardBatch):
        fields["rewards"] = rewards_of(vector)
    if issubclass(schema, RewardComponentsBatch):
        fields["reward_components"] = torch.stack([vector.tensor("rewards"), vector.tensor("rewards_b")], 1)
    if issubclass(schema, ReMaxBatch):
        fields["reward_baselines"] = vector.tensor("reward_baselines")
    if issubclass(schema, GAEBatch):
        fields["values"] = vector.tensor("values").flatten()
    if issubclass(schema, OTBBatch):
        fields |= {"old_log_probs": vector.tensor("old").flatten()}
        fields |= {"sum_pi_squared": vector.tensor("sum_pi_squared").flatten()}
    groups = {"group_ids": groups_of(vector)} if vector.has("index") else {}
    return schema(response_lengths=[mask.shape[1]] * len(mask), loss_mask=mask.flatten(), **fields, **groups)
