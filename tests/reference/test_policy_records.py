"""The reference reproduces the policy losses of real trainers, value and gradient, from their hyper-parameters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.harness import Vector, vectors
from tests.reference import aggregation, corrections, distillation, ratio_objectives, score_objectives
from tests.reference import selective_objectives as selective
from tests.reference.records import check, clamp_of, fixed, given, kl_losses, mask_of, weights_of
from tests.reference.scalars import Rows, leaves

Arguments = dict[str, Any]
UNSUPPORTED = {"from_logits", "prompt_len", "output", "top_entropy_quantile", "entropy_coef"}


def policy_losses(vector: Vector, log_probs: Rows, mask: list[list[bool]]) -> Rows:
    """The objective that a record names, with the record's hyper-parameters."""
    params = vector.params
    if params["objective"] == "nll":
        return score_objectives.nll(log_probs, mask)
    if params.get("advantages_from") == "teacher_minus_old":
        advantages = distillation.teacher_minus_old(fixed(vector, "teacher"), fixed(vector, "old"), mask)
    else:
        advantages = fixed(vector, "advantages")
    if params["objective"] == "on_policy_ratio":
        return ratio_objectives.on_policy_ratio(log_probs, advantages, mask)
    if params["objective"] == "reinforce":
        return _reinforce(vector, log_probs, advantages, mask)
    behaviour = "behaviour" in vector.roles and "old" not in vector.roles
    if params.get("old_is_self"):
        old = [[value.detach() for value in entries] for entries in log_probs]
    else:
        old = fixed(vector, "behaviour" if behaviour or params["objective"].startswith(("dppo", "ipo")) else "old")
    arguments = (log_probs, old, advantages, mask)
    clip = {"clip_low": params.get("eps_low"), "clip_high": params.get("eps_high")}
    clamp = {"log_ratio_clamp": clamp_of(params)}
    dual = {"dual_clip": params.get("dual_clip")}
    drift = {"drift": params.get("drift", 0.0)}
    deltas = {name: params.get(name) for name in ("delta_low", "delta_high")}
    match params["objective"]:
        case "ppo_clip":
            cap = {"ratio_cap": params.get("ratio_cap")}
            return ratio_objectives.ppo_clip(*arguments, **clip, **dual, **cap, **clamp)
        case "gspo":
            sequence = {"count_eps": params.get("seq_eps"), "mean_advantage": params.get("adv_sequence_mean", False)}
            return ratio_objectives.gspo(*arguments, **clip, **dual, **clamp, **sequence)
        case "gspo_token":
            return ratio_objectives.gspo_token(*arguments, **clip, **dual, log_ratio_max=clamp_of(params))
        case "seq_product_clip":
            return ratio_objectives.seq_product_clip(*arguments, **clip)
        case "geo_mean":
            zero = {"zero_advantage": params.get("zero_adv", "unit"), "count_eps": params.get("seq_eps")}
            return ratio_objectives.geo_mean(*arguments, **clip, **zero)
        case "sapo":
            taus = {"tau_positive": params["tau_pos"], "tau_negative": params["tau_neg"]}
            level = {"sequence_level": params.get("level") == "sequence"}
            return ratio_objectives.sapo(*arguments, **taus, **level, **clamp)
        case "is_surrogate":
            return ratio_objectives.is_surrogate(*arguments, **clamp)
        case "cispo":
            bounds = {name: params[name] for name in ("ratio_min", "ratio_max")}
            return score_objectives.reinforce_with_ratio(*arguments, **bounds, **clamp)
        case "rollout_is":
            return score_objectives.rollout_is(*arguments, **clip, **clamp)
        case "vespo":
            return _vespo(vector, arguments)
        case "clip_cov":
            dropped = {tuple(position) for position in params["dropped_positions"]}
            return selective.clip_cov(*arguments, dropped, **clip, **clamp)
        case "kl_cov":
            return selective.kl_cov(*arguments, fraction=params["frac"], coef=params["coef"], **clamp)
        case "dppo_tv":
            zero = {"zero_advantage": "low" if params["zero_adv"] == "low_rule" else "keep"}
            return selective.dppo_tv(*arguments, **deltas, **zero, **drift, **clamp)
        case "dppo_kl":
            return selective.dppo_kl(*arguments, **deltas, eps=params["eps"], **clamp)
        case "ipo_mask":
            return selective.ipo_mask(*arguments, delta=params["delta"], **drift, **clamp)
    raise NotImplementedError(params["objective"])


def _reinforce(vector: Vector, log_probs: Rows, advantages: Rows, mask: list[list[bool]]) -> Rows:
    correction = vector.params.get("correction") or {}
    if correction.get("type") != "clamp_live_ratio":
        return score_objectives.reinforce(log_probs, advantages, mask)
    bounds = {"ratio_min": correction.get("low"), "ratio_max": correction["high"]}
    clamp = {"log_ratio_clamp": correction["log_clamp"]}
    behaviour = fixed(vector, "behaviour")
    return score_objectives.reinforce_with_ratio(log_probs, behaviour, advantages, mask, **bounds, **clamp)


def _vespo(vector: Vector, arguments: tuple[Any, ...]) -> Rows:
    params = vector.params
    scales = {f"{a}_{b}": params[f"{a}_{b[:3]}"] for a in ("k", "lambda") for b in ("positive", "negative")}
    weights = given(vector, "is_weights") if vector.has("is_weights") else None
    return score_objectives.vespo(*arguments, **scales, log_ratio_clamp=params["in_clamp"], weights=weights)


def correction_of(vector: Vector, mask: list[list[bool]]) -> list[list[float]]:
    """The constant weight on each token's loss: importance weights and rejection."""
    params = vector.params.get("correction") or {"type": "none"}
    if params["type"] in ("none", "clamp_live_ratio", "vespo_is"):
        return aggregation.token_sum(mask)
    if params["type"] == "given":
        return given(vector, "is_weights")
    old, behaviour = given(vector, "old"), given(vector, "behaviour")
    low, high, clamp = params.get("low"), params.get("high"), params.get("log_clamp")
    token = corrections.ratios(old, behaviour, mask, "token", clamp)
    product = corrections.ratios(old, behaviour, mask, "sequence", clamp)
    ones = aggregation.token_sum(mask)

    def only(weights: list[list[float]], keep: list[list[bool]]) -> list[list[float]]:
        return [[w * k for w, k in zip(ws, ks, strict=True)] for ws, ks in zip(weights, keep, strict=True)]

    geometric = corrections.sequence_mask(old, behaviour, mask, "geometric", low, high)
    whole = corrections.sequence_mask(old, behaviour, mask, "sequence", low, high)
    chosen = {
        "raw": token,
        "clamp": corrections.truncate(token, mask, low, high),
        "icepop": corrections.zero_outside(token, mask, low, high),
        "seq_mask": only(token, geometric),
        "seq_product": corrections.truncate(product, mask, low, high),
        "seq_product_raw": product,
        "seq_keep_geometric": only(ones, geometric),
        "seq_keep_product": only(ones, whole),
        "seq_keep_all_tokens": only(ones, corrections.outlier_mask(old, behaviour, mask, low, high)),
        "token_keep": only(ones, corrections.inside(token, mask, low, high)),
        "token_keep_then_clamp": only(
            corrections.truncate(token, mask, None, params.get("cap")), corrections.inside(token, mask, low, high)
        ),
    }
    return chosen[params["type"]]


def is_policy(vector: Vector) -> bool:
    params, correction = vector.params, vector.params.get("correction") or {}
    known = "objective" in params and vector.has("logprob") and not UNSUPPORTED & set(params)
    exotic = {"opsm_delta", "positive_nll", "rejection", "token_weights", "kl_is_token"} & set(params)
    supported = known and not exotic and params["objective"] != "prime_components"
    special = correction.get("type") == "areal" or correction.get("sequence_geometric")
    penalty = params.get("kl")
    sequence_kl = isinstance(penalty, dict) and penalty["weight"] == "seq_ratio"
    return supported and not special and not sequence_kl and vector.system != "liger"


@pytest.mark.parametrize(
    "vector", [v for v in vectors("policy", "aggregation", "correction", "opd") if is_policy(v)], ids=lambda v: v.id
)
def test_policy(vector: Vector) -> None:
    live = leaves(given(vector, "logprob"))
    mask = mask_of(vector)
    losses = policy_losses(vector, live, mask)
    constant = correction_of(vector, mask)
    losses = [[c * loss for c, loss in zip(cs, ls, strict=True)] for cs, ls in zip(constant, losses, strict=True)]
    penalty = vector.params.get("kl")
    if penalty is not None:
        added = kl_losses(vector, live, mask, penalty)
        coef = penalty["coef"]
        losses = [[a + coef * b for a, b in zip(x, y, strict=True)] for x, y in zip(losses, added, strict=True)]
    check(vector, losses, weights_of(vector, mask, vector.params["aggregation"]), live)
