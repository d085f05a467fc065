"""Distillation, against the records of the trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import distillation
from rollout_contract.corrections import IcePop
from rollout_contract.distillation import distillation_loss
from rollout_contract.kernels.reverse_kl import future_reverse_kl
from rollout_contract.log_probs import score_hidden_states, score_logits
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import NLL, Objective, Reinforce
from rollout_contract.schemas import (
    AdvantageBatch,
    DivergenceBatch,
    LiveBatch,
    OPDBatch,
    ReverseKLBatch,
    RolloutTeacherBatch,
    TeacherBatch,
    TISBatch,
    TopKBatch,
    TopKEntropyBatch,
)
from tests.conformance.harness import Vector, vectors
from tests.conformance.scored import build, flat, gradient, live, tensor, weighted


class MOPDStep(AdvantageBatch, OPDBatch, TISBatch):
    """A policy gradient whose advantage comes from the teacher, with a correction."""


def opd_batch(vector: Vector, mask: Tensor) -> OPDBatch:
    fields = {"old_log_probs": "old", "teacher_log_probs": "teacher"}
    return build(OPDBatch, mask, **{field: tensor(vector, role) for field, role in fields.items()})


# -- advantages ----------------------------------------------------------------------------------------------------


def advantage(vector: Vector) -> None:
    mask = tensor(vector, "mask")
    seen = torch.ones_like(mask) if vector.params["masked_tokens_touched"] else mask
    advantages = flat(tensor(vector, "advantages"))
    value = distillation.opd_advantages(opd_batch(vector, seen), advantages, coef=vector.params["coef"])
    vector.check(value.view(mask.shape))


def precomputed(vector: Vector) -> None:
    kl_values = tensor(vector, "reverse_kl")
    batch = build(ReverseKLBatch, torch.ones_like(kl_values), reverse_kl=kl_values)
    advantages = flat(tensor(vector, "advantages"))
    value = distillation.reverse_kl_advantages(batch, advantages, coef=vector.params["coef"])
    vector.check(value.view(kl_values.shape))


def reverse_kl(vector: Vector) -> None:
    batch = weighted(opd_batch(vector, tensor(vector, "mask")), vector.params["aggregation"])
    vector.check((batch.loss_weights * distillation.reverse_kl(batch)).sum())


def mopd(vector: Vector) -> None:
    mask = tensor(vector, "mask")
    vector.check(distillation.opd_advantages(opd_batch(vector, mask)).view(mask.shape))


def minillm(vector: Vector) -> None:
    """At the kernel: the record also has the values at masked columns, which no advantage of the library has."""
    mask, params = tensor(vector, "mask"), vector.params
    layout = build(LiveBatch, mask).layout
    value = future_reverse_kl(
        flat(tensor(vector, "teacher") - tensor(vector, "logprob")),
        flat(mask).bool(),
        layout.sample_ids(),
        layout.positions(),
        params["gamma"],
        length_normalised=params["length_norm"],
        masked="step",
        from_start=True,
        masked_weight=1e-4,
    )
    vector.check(value.view(mask.shape))


# -- policy objectives on the sampled token -------------------------------------------------------------------------


def check_policy(vector: Vector, batch: LiveBatch, log_probs: Tensor, objective: Objective, leaf: Tensor) -> None:
    bound = weighted(batch, vector.params["aggregation"]).bind(log_probs=log_probs)
    value = policy_loss(bound, objective).value
    vector.check(value, gradient(value, leaf))


def mopd_loss(vector: Vector) -> None:
    params, mask = vector.params, tensor(vector, "mask")
    assert params["objective"] == "reinforce"
    assert params["advantages_from"] == "teacher_minus_old"
    correction = params["correction"]
    assert correction["type"] == "icepop"
    batch = opd_batch(vector, mask)
    step = batch.extend(
        MOPDStep,
        advantages=distillation.opd_advantages(batch),
        rollout_log_probs=flat(tensor(vector, "behaviour")),
    )
    # The denominator is the record's own number, so the rejected tokens get weight 0 and stay counted.
    rule = IcePop(low=correction["low"], high=correction["high"], log_ratio_bound=correction["log_clamp"])
    step = weighted(step, params["aggregation"]).corrected(rule(step))
    log_probs = live(vector, "logprob")
    value = policy_loss(step.bind(log_probs=flat(log_probs)), Reinforce()).value
    vector.check(value, gradient(value, log_probs))


def ref_kl(vector: Vector) -> None:
    params, mask = vector.params, tensor(vector, "mask")
    if params["rows"] is not None:
        chosen = torch.zeros_like(mask)
        chosen[params["rows"]] = 1.0
        mask = mask * chosen
    batch = build(
        RolloutTeacherBatch,
        mask,
        rollout_log_probs=tensor(vector, "behaviour"),
        teacher_log_probs=tensor(vector, "teacher"),
    )
    objective = distillation.RolloutReverseKL(
        delta_low=params["delta_low"], drift=params["drift"], log_ratio_bound=None
    )
    log_probs = live(vector, "logprob")
    check_policy(vector, batch, flat(log_probs), objective, log_probs)


def sampled_token(vector: Vector) -> None:
    logits, tokens = live(vector, "logits"), flat(tensor(vector, "tokens"))
    teacher = score_logits(flat(tensor(vector, "teacher_logits")), tokens).log_probs
    mask = tensor(vector, "mask")
    batch = build(TeacherBatch, mask, teacher_log_probs=teacher.view(mask.shape))
    log_probs = score_logits(flat(logits), tokens).log_probs
    check_policy(vector, batch, log_probs, distillation.SampledReverseKL(), logits)


def iw_opd(vector: Vector) -> None:
    params, logits = vector.params, live(vector, "logits")
    batch = build(
        RolloutTeacherBatch,
        tensor(vector, "mask"),
        rollout_log_probs=tensor(vector, "behaviour"),
        teacher_log_probs=tensor(vector, "teacher"),
    )
    scores = score_logits(flat(logits), flat(tensor(vector, "tokens")), temperature=params["temperature"])
    objective = distillation.FrontLoadedReverseKL(gamma=params["gamma"], eps=params["eps"])
    check_policy(vector, batch, scores.log_probs, objective, logits)


# -- whole vocabularies ---------------------------------------------------------------------------------------------


def jsd(vector: Vector) -> None:
    params, logits = vector.params, live(vector, "logits")
    no_token = params["form"] == "jsd_all_masked"
    mask = torch.zeros(logits.shape[:2]) if no_token else tensor(vector, "mask")
    divergence = distillation.divergence_of_logits(
        flat(logits),
        flat(tensor(vector, "teacher_logits")),
        beta=params["beta"],
        temperature=params["temperature"],
        chunk_size=7,
    )
    batch = weighted(build(DivergenceBatch, mask), params.get("aggregation", {"mode": "token_mean"}))
    value = distillation_loss(batch.bind(divergence=divergence), distillation.FullVocabulary()).value
    vector.check(value, gradient(value, logits))


def jsd_hidden(vector: Vector) -> None:
    params, roles, mask = vector.params, vector.roles, tensor(vector, "mask")
    wrt = next(role for role, name in roles.items() if name == vector.entry["wrt"])
    inputs = {role: live(vector, role) if role == wrt else tensor(vector, role) for role in roles}
    hidden, weight = flat(inputs["hidden"]), inputs["weight"]
    divergence = distillation.divergence_of_hidden_states(
        hidden,
        weight,
        flat(inputs["teacher_hidden"]),
        inputs["teacher_weight"],
        beta=params["beta"],
        temperature=params["temperature"],
        chunk_size=7,
    )
    log_probs = score_hidden_states(hidden, weight, flat(inputs["tokens"])).log_probs
    soft = weighted(build(DivergenceBatch, mask), params["aggregation"]).bind(divergence=divergence)
    hard = weighted(build(LiveBatch, mask), params["aggregation"]).bind(log_probs=log_probs)
    loss = params["soft_weight"] * distillation_loss(soft, distillation.FullVocabulary())
    loss = loss + params["hard_weight"] * policy_loss(hard, NLL())
    vector.check(loss.value, gradient(loss.value, inputs[wrt]))


# -- top-k ----------------------------------------------------------------------------------------------------------


def topk_batch(
    vector: Vector, mask: Tensor, ids: Tensor, logits: Tensor, members: Tensor | None = None
) -> TopKEntropyBatch:
    """A bound batch over the outcomes ``ids`` [tokens, topk]."""
    teacher = score_logits(flat(tensor(vector, "teacher_logits")), ids).log_probs
    fields = {} if members is None else {"topk_mask": members}
    lengths = [mask.shape[1]] * mask.shape[0]
    batch = TopKEntropyBatch(
        response_lengths=lengths, loss_mask=flat(mask), topk_ids=ids, teacher_topk_log_probs=teacher, **fields
    )
    if "aggregation" in vector.params:
        batch = weighted(batch, vector.params["aggregation"])
    scores = score_logits(flat(logits), ids)
    return batch.bind(topk_log_probs=scores.log_probs, entropy=scores.entropy)


def top(logits: Tensor, k: int) -> Tensor:
    return flat(logits).detach().topk(k, dim=-1).indices


def check_topk(vector: Vector, batch: TopKBatch, term: Any, logits: Tensor) -> None:
    value = distillation_loss(batch, term).value
    vector.check(value, gradient(value, logits))


def topk_jsd(vector: Vector) -> None:
    params, logits = vector.params, live(vector, "logits")
    assert params["support"] == "student"
    batch = topk_batch(vector, tensor(vector, "mask"), top(logits, params["k"]), logits)
    outside = "tail" if params["tail"] else "renormalise"
    check_topk(vector, batch, distillation.TopKDivergence(beta=params["beta"], outside=outside), logits)


def nemo_topk(vector: Vector) -> None:
    params, logits = vector.params, live(vector, "logits")
    assert params["support"] == "teacher"
    batch = topk_batch(vector, tensor(vector, "mask"), top(tensor(vector, "teacher_logits"), params["k"]), logits)
    beta = {"forward": 0.0, "reverse": 1.0, "mixed": 1.0 - params["mixed_weight"]}[params["kl"]]
    if params["zero_outside"]:
        term: Any = distillation.FlooredTopKDivergence(beta=beta, floor=params["log_zero"])
    else:
        term = distillation.TopKDivergence(beta=beta, outside="ignore", interpolation="linear")
    check_topk(vector, batch, term, logits)


def topk_reverse_kl(vector: Vector) -> None:
    """Per token; a live loss here, so the value alone is compared with the trainer's constant."""
    params, logits = vector.params, live(vector, "logits")
    mask = tensor(vector, "length_mask")
    support = params["strategy"].removeprefix("only-")
    k = params["k"]
    ids, members = distillation.topk_support(top(logits, k), top(tensor(vector, "teacher_logits"), k), support)
    batch = topk_batch(vector, mask, ids, logits, members)
    weights = {"student_p": "student", "teacher_p": "teacher", "none": "uniform"}[params["weights"]]
    term = distillation.TopKReverseKL(weights=weights, renormalise=params["renormalise"])
    value = term.terms(batch).loss
    assert value.requires_grad
    vector.check(value.view(mask.shape))


FORMS: dict[str, Callable[[Vector], None]] = {
    "advantage": advantage,
    "precomputed": precomputed,
    "reverse_kl": reverse_kl,
    "mopd": mopd,
    "minillm": minillm,
    "ref_kl": ref_kl,
    "sampled_token": sampled_token,
    "iw_opd": iw_opd,
    "jsd": jsd,
    "jsd_all_masked": jsd,
    "jsd_hidden": jsd_hidden,
    "topk_jsd": topk_jsd,
    "nemo_topk": nemo_topk,
    "topk_reverse_kl": topk_reverse_kl,
}


@pytest.mark.parametrize("vector", vectors("opd"), ids=lambda vector: vector.id)
def test_opd(vector: Vector) -> None:
    if "objective" in vector.params:
        mopd_loss(vector)
    else:
        FORMS[vector.params["form"]](vector)
