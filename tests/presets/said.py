"""What a record's parameters are called among the options of the trainer that made it."""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.harness import Vector

Said = tuple[str, dict[str, Any]]
"""The preset, and its options."""


class CannotBeSaid(Exception):
    """The record calls a function in a way that no option of the trainer leads to."""


def options_of(vector: Vector) -> Said:
    """The preset and the options that mean what the record's parameters say."""
    return SYSTEMS[vector.system](vector)


def clip(params: dict[str, Any]) -> tuple[float, float]:
    """The clip range, also of a CISPO record, whose bounds are those of the ratio."""
    if params["objective"] == "cispo":
        return 1 - (params["ratio_min"] or 0.0), params["ratio_max"] - 1
    return params["eps_low"], params["eps_high"]


def given(names: dict[str, str], params: dict[str, Any]) -> dict[str, Any]:
    """Option -> parameter, where the record has it."""
    return {option: params[name] for option, name in names.items() if name in params}


# -- verl --------------------------------------------------------------------------------------------------------------

VERL = {
    "clip_ratio_low": "eps_low",
    "clip_ratio_high": "eps_high",
    "clip_ratio_c": "dual_clip",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
    "clip_cov_ratio": "frac",
    "clip_cov_lb": "cov_low",
    "clip_cov_ub": "cov_high",
    "kl_cov_ratio": "frac",
    "ppo_kl_coef": "coef",
}


def verl(vector: Vector) -> Said:
    params = vector.params
    mode = re.findall("'(.*)'", vector.entry["symbol"])[0]
    options = {"loss_mode": mode} | {n: v for n, v in given(VERL, params).items() if v is not None}
    if params["objective"] == "cispo":
        options |= dict(zip(("clip_ratio_low", "clip_ratio_high"), clip(params), strict=True))
    if params["aggregation"]["mode"] == "seq_mean_token_mean":
        options["actor.loss_agg_mode"] = "seq-mean-token-mean"
    return "verl", options if mode != "bypass_mode" else verl_bypass(params)


def verl_bypass(params: dict[str, Any]) -> dict[str, Any]:
    if params["objective"] != "reinforce":
        raise CannotBeSaid("in bypass mode with PPO clip the rejection asks the live policy; the preset refuses it")
    rejection = params["rejection"]
    return {
        "rollout_correction": {
            "bypass_mode": True,
            "loss_type": "reinforce",
            "rollout_is": "token",
            "rollout_is_threshold": params["correction"]["high"],
            "rollout_rs": rejection["option"],
            "rollout_rs_threshold": f"{rejection['low']}_{rejection['high']}",
        }
    }


# -- miles and slime ---------------------------------------------------------------------------------------------------


def megatron(vector: Vector) -> Said:
    params = vector.params
    low, high = clip(params)
    estimator = {"ppo_clip": "grpo"}.get(params["objective"], params["objective"])
    options: dict[str, Any] = {"--advantage-estimator": estimator, "--eps-clip": low, "--eps-clip-high": high}
    if params.get("dual_clip"):
        options["--eps-clip-c"] = params["dual_clip"]
    if params["aggregation"]["mode"] == "sum":
        options["--calculate-per-token-loss"] = True
    if params.get("opsm_delta") is not None:
        options |= {"--use-opsm": True, "--opsm-delta": params["opsm_delta"]}
    if params.get("entropy_coef"):
        options["--entropy-coef"] = params["entropy_coef"]
    if params.get("kl"):
        kl = params["kl"]
        options |= {"--use-kl-loss": True, "--kl-loss-coef": kl["coef"], "--kl-loss-type": kl["estimator"]}
        options["--use-unbiased-kl"] = kl["weight"] == "ratio"
    if params.get("correction"):
        bounds = params["correction"]
        options |= {"--use-tis": True, "--tis-clip-low": bounds["low"], "--tis-clip": bounds["high"]}
        if bounds["type"] == "icepop":
            options["--custom-tis-function-path"] = "corrections.icepop_function"
    return vector.system, options


# -- TRL and Liger -----------------------------------------------------------------------------------------------------

SHARED = {
    "delta": "ratio_cap",
    "sapo_temperature_pos": "tau_pos",
    "sapo_temperature_neg": "tau_neg",
    "vespo_k_pos": "k_pos",
    "vespo_lambda_pos": "lambda_pos",
    "vespo_k_neg": "k_neg",
    "vespo_lambda_neg": "lambda_neg",
}


def grpo_loss_type(params: dict[str, Any]) -> str:
    if params["objective"] in ("cispo", "sapo", "vespo"):
        return str(params["objective"])
    spec = params["aggregation"]
    if spec["mode"] == "token_mean":
        return "bnpo" if spec["denominator"] == "mask_sum" else "dapo"
    return {
        "token_sum_over_const": "dr_grpo",
        "seq_loss_times_length_mean": "luspo",
    }.get(spec["mode"], "grpo")


def grpo(vector: Vector, low: str, high: str) -> dict[str, Any]:
    params = vector.params
    options = {"loss_type": grpo_loss_type(params)} | given(SHARED, params)
    if params["objective"] == "gspo":
        options["importance_sampling_level"] = "sequence"
    if params["objective"] == "cispo":
        options[high] = params["ratio_max"]
    elif "eps_low" in params:
        options |= {low: params["eps_low"], high: params["eps_high"]}
    if options["loss_type"] == "dr_grpo":
        options["max_completion_length"] = params["aggregation"]["constant"] // len(vector.tensor("mask"))
    kl = params.get("kl")
    options["beta"] = kl["coef"] if kl else 0.0
    if kl:
        options["use_bias_correction_kl"] = kl["weight"] != "none"
    return options


def trl(vector: Vector) -> Said:
    params = vector.params
    if params["objective"] == "seq_product_clip":
        return "trl.rloo", {"epsilon": params["eps_low"], "epsilon_high": params["eps_high"], "beta": 0.0}
    options = grpo(vector, "epsilon", "epsilon_high")
    if params["objective"] == "geo_mean":
        names = ("epsilon", "epsilon_high", "beta")
        return "trl.gmpo", {name: options[name] for name in names}
    if params["objective"] == "gspo_token":
        return "trl.gspo_token", options
    options |= given({"top_entropy_quantile": "top_entropy_quantile", "entropy_coef": "entropy_coef"}, params)
    if params.get("opsm_delta") is not None:
        options["off_policy_mask_threshold"] = params["opsm_delta"]
        options |= {"use_vllm": True, "vllm_importance_sampling_correction": False}
    return "trl", options


def liger(vector: Vector) -> Said:
    if vector.params.get("kl_is_token"):
        raise CannotBeSaid("Liger averages n x KL over the padded width; the preset refuses it")
    return "liger", grpo(vector, "epsilon_low", "epsilon_high")


# -- OpenRLHF, prime-rl, NeMo-RL ---------------------------------------------------------------------------------------


def openrlhf(vector: Vector) -> Said:
    params = vector.params
    gspo = params["objective"] == "gspo"
    if not gspo and params["aggregation"]["mode"] == "seq_mean_token_mean":
        raise CannotBeSaid("OpenRLHF's trainer always takes the token mean for PPO")
    options: dict[str, Any] = {
        "--policy_loss_type": "gspo" if gspo else "ppo",
        "--eps_clip_low_high": [params["eps_low"], params["eps_high"]],
        "--dual_clip": params["dual_clip"],
        "--init_kl_coef": 0,
    }
    if params.get("correction"):
        kind, low, high = (params["correction"][name] for name in ("type", "low", "high"))
        options["--vllm_is_correction_type"] = {"clamp": "tis", "seq_mask": "seq-mask-tis"}.get(kind, kind)
        options["--vllm_is_truncated_threshold"] = [low, high]
    if params.get("correction") or "behaviour" in vector.id:
        options["--enable_vllm_is_correction"] = True
    return "openrlhf", options


def primerl(vector: Vector) -> Said:
    params = vector.params
    if "token_weights" in params:
        raise CannotBeSaid("weights per token are data, not an option")
    if params["objective"] == "nll":
        return "prime-rl", {"algo": {"type": "sft"}}
    names = {"dppo_mask_low": "delta_low", "dppo_mask_high": "delta_high", "ipo_threshold": "delta"}
    kind = "ipo" if params["objective"] == "ipo_mask" else "default"
    return "prime-rl", {"loss": {"type": kind, "kl_tau": params["drift"]} | given(names, params)}


def nemorl(vector: Vector) -> Said:
    params = vector.params
    if params["objective"] == "nll":
        raise CannotBeSaid("NLLLossFn is the loss of another program")
    options: dict[str, Any] = {"token_level_loss": params["aggregation"]["mode"] == "token_mean"}
    if params["objective"] == "cispo" or "eps_low" in params:
        options["ratio_clip_min"], options["ratio_clip_max"] = clip(params)
    options |= {
        "ratio_clip_c": params.get("dual_clip"),
        "use_cispo": params["objective"] == "cispo",
        "disable_ppo_ratio": params["objective"] == "reinforce",
        "force_on_policy_ratio": params["objective"] == "on_policy_ratio",
        "sequence_level_importance_ratios": params["objective"] == "gspo",
        "positive_example_nll_weight": params.get("positive_nll", 0.0),
        "reference_policy_kl_penalty": 0.0,
    }
    if params.get("kl"):
        kl = params["kl"]
        options |= {
            "reference_policy_kl_penalty": kl["coef"],
            "reference_policy_kl_type": kl["estimator"],
            "kl_input_clamp_value": kl["in_clamp"],
            "kl_output_clamp_value": kl["out_clamp"],
            "use_on_policy_kl_approximation": kl["weight"] == "behaviour_ratio",
        }
    if params.get("correction"):
        options |= nemorl_correction(params["correction"])
    return "nemo-rl", {"loss_fn": options}


def nemorl_correction(spec: dict[str, Any]) -> dict[str, Any]:
    kind = {"clamp": "tis", "icepop": "icepop", "seq_mask": "seq-mask-tis"}.get(spec["type"])
    if kind is None:
        return {"use_importance_sampling_correction": True}
    return {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio_min": spec["low"],
        "truncated_importance_sampling_ratio": spec["high"],
    }


# -- AReaL, SkyRL, torchforge ------------------------------------------------------------------------------------------


def areal(vector: Vector) -> Said:
    params = vector.params
    options: dict[str, Any] = {"recompute_logprob": True, "kl_ctl": 0.0}
    if params["objective"] == "sapo":
        taus = {"sapo_tau_pos": params["tau_pos"], "sapo_tau_neg": params["tau_neg"]}
        level = params["level"]
        return "areal", {"actor": options | taus | {"use_sapo_loss": True, "importance_sampling_level": level}}
    options |= {"eps_clip": params["eps_low"], "eps_clip_higher": params["eps_high"], "c_clip": params["dual_clip"]}
    if params["objective"] == "gspo":
        options["importance_sampling_level"] = "sequence"
    if params.get("correction"):
        spec = params["correction"]
        rejection = {name: spec[name] for name in ("level", "action", "metric", "agg")}
        rejection |= {"lower": spec["low"], "upper": spec["high"]}
        options |= {"use_decoupled_loss": True, "rejection_sampling": rejection}
    return "areal", {"actor": options}


SKYRL = {
    "eps_clip_low": "eps_low",
    "eps_clip_high": "eps_high",
    "sapo.tau_pos": "tau_pos",
    "sapo.tau_neg": "tau_neg",
    "clip_cov.clip_ratio": "frac",
    "clip_cov.clip_cov_lb": "cov_low",
    "clip_cov.clip_cov_ub": "cov_high",
    "kl_cov.kl_cov_frac": "frac",
    "kl_cov.ppo_kl_coef": "coef",
    "dppo.delta_low": "delta_low",
    "dppo.delta_high": "delta_high",
}
SKYRL_LOSSES = {
    "ppo_clip": "regular",
    "gspo_token": "gspo",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
    "nll": "cross_entropy",
    "is_surrogate": "importance_sampling",
}


def skyrl(vector: Vector) -> Said:
    params = vector.params
    kind = SKYRL_LOSSES.get(params["objective"], params["objective"])
    options: dict[str, Any] = given(SKYRL, params) | {"policy_loss_type": kind, "use_kl_loss": False}
    if params.get("dual_clip") is not None:
        options |= {"policy_loss_type": "dual_clip", "clip_ratio_c": params["dual_clip"]}
    if kind == "dppo":
        options["dppo.dppo_type"] = params["objective"].replace("dppo", "binary")
    if kind == "cispo":
        options["cispo.cispo_eps_clip_low"], options["cispo.cispo_eps_clip_high"] = clip(params)
        options["cispo.cispo_anchor"] = "rollout" if vector.roles["old"] == "rollout" else "old"
    if params.get("correction"):
        options["off_policy_correction"] = skyrl_correction(params["correction"])
    return "skyrl", {"trainer": {"algorithm": options}}


def skyrl_correction(spec: dict[str, Any]) -> dict[str, Any]:
    kind, low, high = spec["type"], spec.get("low"), spec["high"]
    if kind == "clamp":
        return {"tis_ratio_type": "token", "token_tis_ratio_clip_high": high}
    if kind == "seq_product":
        return {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": high}
    if kind == "seq_keep_geometric":
        return {"sequence_mask_metric": "geometric", "geo_mask_low": low, "geo_mask_high": high}
    if kind == "seq_keep_product":
        return {"sequence_mask_metric": "product", "product_mask_low": low, "product_mask_high": high}
    if kind == "seq_keep_all_tokens":
        return {"outlier_token_is_threshold_low": low, "outlier_token_is_threshold_high": high}
    masks = {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
    if kind == "token_keep":
        return masks
    return masks | {"tis_ratio_type": "token", "token_tis_ratio_clip_high": spec["cap"]}


def forge(vector: Vector) -> Said:
    params = vector.params
    if params["objective"] == "on_policy_ratio":
        return "torchforge.simple_grpo", {"beta": params["kl"]["coef"] if params["kl"] else 0.0}
    bounds = params["correction"]
    return "torchforge.reinforce", {"is_clip_min": bounds["low"], "is_clip_max": bounds["high"]}


SYSTEMS = {
    "verl": verl,
    "miles": megatron,
    "slime": megatron,
    "trl": trl,
    "liger": liger,
    "openrlhf": openrlhf,
    "primerl": primerl,
    "nemorl": nemorl,
    "areal": areal,
    "skyrl": skyrl,
    "forge": forge,
}
