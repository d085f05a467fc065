"""The reference reproduces the numbers of real trainers, value and gradient, from their hyper-parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.conformance.harness import Vector, vectors
from tests.reference import advantages as estimators
from tests.reference import corrections, distillation, values
from tests.reference import selective_objectives as selective
from tests.reference.records import check, fixed, given, kl_losses, mask_of, weights_of
from tests.reference.scalars import gradients, leaves, numbers, per_token, row, scalar, weighted_sum


@pytest.mark.parametrize("vector", [v for v in vectors("kl") if v.has("logprob")], ids=lambda v: v.id)
def test_kl(vector: Vector) -> None:
    live, mask = leaves(given(vector, "logprob")), mask_of(vector)
    if vector.params["aggregation"]["mode"] == "none":
        mask = [[True] * len(entries) for entries in mask]
    losses = kl_losses(vector, live, mask, vector.params)
    check(vector, losses, weights_of(vector, mask, vector.params["aggregation"]), live)


@pytest.mark.parametrize("vector", [v for v in vectors("value") if v.has("values")], ids=lambda v: v.id)
def test_value(vector: Vector) -> None:
    params, mask = vector.params, mask_of(vector)
    live = leaves([[v * params.get("value_scale", 1.0) for v in entries] for entries in given(vector, "values")])
    huber = params["huber_delta"] if params.get("loss") == "huber" else None
    old, returns = fixed(vector, "old_values"), fixed(vector, "returns")
    losses = values.value_loss(live, old, returns, mask, clip=params["clip"], half=params["half"], huber_delta=huber)
    check(vector, losses, weights_of(vector, mask, params["aggregation"]), live)


# -- advantages --------------------------------------------------------------------------------------------------------


def advantages_of(vector: Vector) -> list[list[float]]:
    params = vector.params
    mask, token_rewards = mask_of(vector), given(vector, "token_rewards")
    rewards = [sum(entries) for entries in token_rewards]
    groups = given(vector, "index") if vector.has("index") else list(range(len(mask)))
    singleton = "raw" if params.get("singleton", "zero").startswith("raw") else "zero"
    match params["estimator"]:
        case "group_norm":
            std = {"std": "group" if params["std"] else "none", "eps": params.get("eps", 0.0)}
            per_sample = estimators.grpo(rewards, groups, **std, singleton=singleton)
        case "rloo":
            per_sample = estimators.leave_one_out(rewards, groups, singleton=singleton)
        case "opo":
            per_sample = estimators.opo(rewards, groups, mask, singleton=singleton)
        case "gpg":
            per_sample = estimators.gpg(rewards, groups, f_norm=params["f_norm"], singleton=singleton)
        case "passk":
            per_sample = estimators.pass_at_k(rewards, groups, std=params["std"], eps=params.get("eps", 0.0))
        case "maxrl":
            per_sample = estimators.max_rl(rewards, groups, eps=params["eps"], singleton=singleton)
        case "remax":
            return estimators.remax(token_rewards, given(vector, "reward_baselines"), mask)
        case "rpp_reset":
            return estimators.discounted_returns(token_rewards, mask, gamma=params["gamma"], reset=True)
        case "discounted_returns":
            return estimators.discounted_returns(token_rewards, mask, gamma=params["gamma"])
        case "gae_carry":
            discounts = {"gamma": params["gamma"], "lam": params["lam"]}
            found = estimators.gae(token_rewards, given(vector, "values"), mask, **discounts)
            return found[params["output"] == "returns"]
        case "otb":
            options = {name: params[name] for name in ("compact", "zero_tail", "eps")}
            weights = given(vector, "is_weights") if params.get("is_squared") else None
            old, squares = given(vector, "old"), given(vector, "sum_pi_squared")
            arguments = (token_rewards, old, squares, mask, groups)
            return estimators.optimal_token_baseline(*arguments, **options, is_weights=weights)
    return estimators.spread(per_sample, mask)


ADVANTAGES = {
    *("group_norm", "rloo", "opo", "gpg", "passk", "maxrl", "remax"),
    *("rpp_reset", "discounted_returns", "gae_carry", "otb"),
}


def is_advantage(vector: Vector) -> bool:
    """Records on token rewards; verl's floored variance is its own, and ReMax of verl is not masked."""
    return (
        vector.params["estimator"] in ADVANTAGES
        and vector.has("token_rewards")
        and "var_floor" not in vector.params
        and (vector.params.get("output") == "advantages" or vector.params["estimator"] == "gae_carry")
    )


@pytest.mark.parametrize("vector", [v for v in vectors("advantage") if is_advantage(v)], ids=lambda v: v.id)
def test_advantages(vector: Vector) -> None:
    params, mask = vector.params, mask_of(vector)
    found = advantages_of(vector)
    whiten = params.get("whiten")
    if whiten and params.get("output") == "advantages":
        form = {name: whiten[name] for name in ("bessel", "eps", "form")}
        found = estimators.whiten(found, mask, **form)
    expected = vector.entry["value"]
    for i, entries in enumerate(mask):
        for t, keep in enumerate(entries):
            if keep:
                assert found[i][t] == pytest.approx(expected[i][t], rel=2e-6, abs=1e-7), (vector.id, i, t)


# -- corrections that are records of their own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", [v for v in vectors("correction") if v.params.get("level") and "what" in v.params], ids=lambda v: v.id
)
def test_weights_and_masks(vector: Vector) -> None:
    params, mask = vector.params, mask_of(vector)
    old, behaviour = given(vector, "old"), given(vector, "behaviour")
    weights = corrections.ratios(old, behaviour, mask, params["level"], params["log_clamp"])
    keep = corrections.inside(weights, mask, params["low"], params["high"])
    if params.get("veto"):
        keep = corrections.both(keep, corrections.outlier_mask(old, behaviour, mask, params["veto"], None))
    low = params["low"] if params["mode"] == "clip" else 0.0
    if params["mode"] != "mask":
        weights = corrections.truncate(weights, mask, low, params["high"])
    if params.get("normalize_by"):
        weights = corrections.batch_normalized(weights, mask, params["normalize_by"])
    vector.check(torch.tensor(keep if params["what"] == "mask" else weights, dtype=torch.float64))


@pytest.mark.parametrize(
    "vector", [v for v in vectors("correction") if v.params.get("what") == "verl_rejection_mask"], ids=lambda v: v.id
)
def test_rejection(vector: Vector) -> None:
    params, mask = vector.params, mask_of(vector)
    old, behaviour = given(vector, "old"), given(vector, "behaviour")
    ratios = corrections.log_ratios(old, behaviour, mask, params["log_clamp"])
    keep = mask
    for option, high in zip(params["option"].split(","), (params["high"], params.get("high2")), strict=False):
        statistic, level = option.split("_")[-1], option.removeprefix("seq_").split("_")[0]
        if statistic == "k1":  # bounds on 1 / rho
            inverse = [[-x for x in xs] for xs in ratios]
            found = corrections.statistic_mask(inverse, mask, "ratio", level, params["low"], high)
        else:
            found = corrections.statistic_mask(ratios, mask, statistic, level, None, high)
        keep = corrections.both(keep, found)
    vector.check(torch.tensor(keep, dtype=torch.float64))


@pytest.mark.parametrize(
    "vector", [v for v in vectors("correction") if v.params.get("what") == "opsm_mask"], ids=lambda v: v.id
)
def test_opsm(vector: Vector) -> None:
    arguments = [fixed(vector, role) for role in ("logprob", "old", "advantages")]
    mask = mask_of(vector)
    keep = selective.opsm_mask(*arguments, mask, delta=vector.params["delta"])
    wanted = vector.entry["value"]
    assert [[k for k, m in zip(ks, ms, strict=True) if m] for ks, ms in zip(keep, mask, strict=True)] == [
        [bool(w) for w, m in zip(ws, ms, strict=True) if m] for ws, ms in zip(wanted, mask, strict=True)
    ]


# -- distillation over a vocabulary ------------------------------------------------------------------------------------


def vocabulary_loss(vector: Vector, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    params = vector.params
    temperature = params.get("temperature", 1.0)
    student = distillation.log_softmax(student, temperature)
    teacher = distillation.log_softmax(teacher, temperature)
    match params["form"]:
        case "jsd":
            return distillation.jensen_shannon(student, teacher, params["beta"])
        case "topk_jsd":
            support = distillation.top_k(student, params["k"])
            return distillation.top_k_divergence(student, teacher, support, beta=params["beta"], tail=params["tail"])
        case "nemo_topk":
            options = {name: params[name] for name in ("kl", "mixed_weight", "zero_outside")}
            return distillation.teacher_top_k_loss(student, teacher, params["k"], **options)
        case "topk_reverse_kl":
            name = params["strategy"].removeprefix("only-")
            support = sorted(distillation.top_k_set(student, teacher, params["k"], name))
            weights = params["weights"].removesuffix("_p")
            normalised = params["strategy"] != "xor"
            return distillation.top_k_reverse_kl(student, teacher, support, weights, normalised=normalised)
    raise NotImplementedError(params["form"])


FORMS = {"jsd", "topk_jsd", "nemo_topk", "topk_reverse_kl"}


@pytest.mark.parametrize("vector", [v for v in vectors("opd") if v.params.get("form") in FORMS], ids=lambda v: v.id)
def test_distillation(vector: Vector) -> None:
    teacher = given(vector, "teacher_logits")
    per_token_only = not vector.has("mask")
    mask = [[bool(m) for m in ms] for ms in given(vector, "length_mask" if per_token_only else "mask")]
    live = [leaves(entries) for entries in given(vector, "logits")]
    losses = per_token(mask, lambda i, t: vocabulary_loss(vector, live[i][t], row(teacher[i][t])))
    if per_token_only:
        vector.check(torch.tensor(numbers(losses), dtype=torch.float64))
        return
    loss = weighted_sum(losses, weights_of(vector, mask, vector.params["aggregation"]))
    gradient = torch.tensor(gradients(loss, [token for sample in live for token in sample]), dtype=torch.float64)
    vector.check(loss.detach(), gradient.reshape(len(mask), len(mask[0]), -1))


@pytest.mark.parametrize(
    "vector", [v for v in vectors("opd") if v.params.get("form") in ("ref_kl", "minillm")], ids=lambda v: v.id
)
def test_sampled_distillation(vector: Vector) -> None:
    live, mask, params = leaves(given(vector, "logprob")), mask_of(vector), vector.params
    teacher = fixed(vector, "teacher")
    if params["form"] == "minillm":
        options = {"gamma": params["gamma"], "length_norm": params["length_norm"], "absolute": True}
        found = distillation.minillm_advantages(live, teacher, mask, **options)
        expected = vector.entry["value"]
        wrong = per_token(mask, lambda i, t: found[i][t].detach() - scalar(expected[i][t]))
        assert max(abs(float(d)) for ds in wrong for d in ds) < 1e-6
        return
    options = {"delta_low": params["delta_low"], "drift": params["drift"]}
    losses = distillation.ref_kl(live, fixed(vector, "behaviour"), teacher, mask, **options)
    check(vector, losses, weights_of(vector, mask, params["aggregation"]), live)
