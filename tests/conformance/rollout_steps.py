"""From a record's inputs and parameters to a step of the library: batches, objectives and aggregations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.aggregation import Aggregation
from rollout_contract.layout import Layout
from rollout_contract.log_probs import Scores, score_hidden_states, score_logits
from rollout_contract.objectives import Objective
from rollout_contract.schemas import OffPolicyMaskBatch, PolicyBatch, TISBatch
from tests.conformance import policy_objectives
from tests.conformance.harness import Vector


class Step(OffPolicyMaskBatch, PolicyBatch, TISBatch):
    """Scores of the trainer and of the sampler, and advantages."""


FIELD_OF_ROLE = {"old": "old_log_probs", "behaviour": "rollout_log_probs"}


def tensor_of(vector: Vector, role: str) -> Tensor:
    """A tensor of the record."""
    return vector.tensor(role)


def mask_of(vector: Vector, shape: torch.Size) -> Tensor:
    """[batch, width] bool; systems that take no mask train every token."""
    return tensor_of(vector, "mask").bool() if vector.has("mask") else torch.ones(shape, dtype=torch.bool)


def step_of(vector: Vector, rows: list[int] | None = None, **fields: Tensor) -> Step:
    """The record's batch. Every column is a response token, and the mask says which are trained.

    ``fields`` stand in for, or replace, the record's own. What a system does not have (the sampler's scores, say) is
    filled with the scores that it does have.
    """
    found = {name: tensor_of(vector, role) for role, name in FIELD_OF_ROLE.items() if vector.has(role)} | fields
    scores = next(iter(found.values())) if found else log_probs_of(vector)
    mask = mask_of(vector, scores.shape)
    for name in FIELD_OF_ROLE.values():
        found.setdefault(name, scores)
    found.setdefault("advantages", advantages_of(vector, mask.shape))
    chosen = list(range(mask.shape[0])) if rows is None else rows
    packed = {name: tensor[chosen].reshape(-1) for name, tensor in found.items()}
    return Step(response_lengths=[mask.shape[1]] * len(chosen), loss_mask=mask[chosen].reshape(-1), **packed)


def advantages_of(vector: Vector, shape: torch.Size) -> Tensor:
    """[batch, width]; one advantage per sample is given to each of its tokens."""
    if not vector.has("advantages"):
        return torch.zeros(shape, dtype=torch.float64)
    found = tensor_of(vector, "advantages")
    return found if found.dim() == 2 else found[:, None].expand(shape)


def log_probs_of(vector: Vector) -> Tensor:
    """[batch, width] of the current policy: given, or scored from logits or hidden states; 0 beyond a response."""
    if vector.has("logprob"):
        return tensor_of(vector, "logprob")
    if vector.has("hidden"):
        hidden, tokens = tensor_of(vector, "hidden"), tensor_of(vector, "tokens")
        scores = score_hidden_states(hidden.flatten(0, 1), tensor_of(vector, "weight"), tokens.flatten())
        return scores.log_probs.reshape(tokens.shape)
    layout = packed_layout(vector)
    return layout.pad(packed_scores(vector).log_probs, width=tensor_of(vector, "mask").shape[1])


def packed_layout(vector: Vector) -> Layout:
    """Of records whose prompts and responses come end to end."""
    lengths = tensor_of(vector, "lengths").tolist()
    return Layout(lengths, prompt_lengths=[vector.params["prompt_len"]] * len(lengths))


def packed_scores(vector: Vector) -> Scores:
    layout = packed_layout(vector)
    logits = layout.response_from_predictions(tensor_of(vector, "packed_logits"))
    token_ids = layout.response_from_sequence(tensor_of(vector, "packed_tokens"))
    return score_logits(logits, token_ids, temperature=vector.params["temperature"])


def objective_of(vector: Vector) -> Objective:
    """The record's objective without its off-policy mask."""
    params = vector.params | {"opsm_delta": None}
    return policy_objectives.objective_of(params, width=tensor_of(vector, "mask").shape[1])


def aggregation_of(params: dict[str, Any], mask: Tensor) -> Aggregation:
    """How the system reduces, with the counts of the mask ``mask`` [batch, width] from before any rejection."""
    spec: dict[str, Any] = params.get("aggregation", {"mode": "token_mean", "denominator": "mask_sum"})
    counts = mask.sum(1)
    filled = int((counts > 0).sum())
    least = spec.get("clamp_min") or 1
    if spec["mode"] == "sum":
        return Aggregation(mode="sum")
    if spec["mode"] == "token_mean":
        named = spec["denominator"] in ("mask_sum", "original_mask_sum")
        count = float(counts.sum()) if named else spec["denominator"]
        # A plain sum with the count from before the rejection: "token-mean" would count the tokens that stay.
        return Aggregation(mode="sum", scale=1 / max(count + spec.get("eps", 0.0), least))
    if spec["mode"] == "sum_seq_token_mean":
        return Aggregation(mode="seq-mean-token-mean", scale=filled)
    if spec["mode"] == "seq_mean_token_mean":
        if spec["denominator"] == "batch":
            return Aggregation(mode="seq-mean-token-mean", count_empty=True)
        return Aggregation(mode="seq-mean-token-mean", scale=filled / spec["denominator"])
    raise KeyError(spec["mode"])
