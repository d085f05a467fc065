"""Log-probs and entropy of packed response tokens, from logits or straight from hidden states, in chunks.

Row ``t`` of the logits or hidden states must be the one that *predicts* response token ``t``;
:meth:`Layout.response_from_predictions <rollout_contract.layout.Layout.response_from_predictions>` picks these rows
out of whole sequences. The results are what ``batch.bind(log_probs=..., entropy=...)`` takes.

>>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)      # [tokens, vocab]
>>> scores = score_logits(logits, torch.tensor([0, 2]), temperature=0.6)
>>> [round(x, 4) for x in scores.log_probs.tolist()]
[-0.2026, -1.0986]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.errors import Violation, raise_violations
from rollout_contract.kernels.log_probs import Scores as Scores
from rollout_contract.kernels.log_probs import scores_of_states
from rollout_contract.kernels.projection import working_dtype


def score_logits(
    logits: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens"] | Int[Tensor, "tokens topk"],
    *,
    temperature: float | Float[Tensor, "tokens"] = 1.0,
    keep_mask: Bool[Tensor, "tokens vocab"] | None = None,
    chunk_size: int = 1024,
) -> Scores:
    """Log-probs of ``token_ids`` and the entropy of each position, live in ``logits``.

    Args:
        logits: raw, before the temperature. Half precision is widened to float32, one chunk at a time.
        token_ids: the sampled token of each position, or ``topk`` tokens of each position, all within the vocabulary.
        temperature: that of the sampler, so that both sides score the same distribution; above 0.
        keep_mask: True where the sampler's top-p or top-k filter kept an entry. The log-probs are then those of the
            renormalised rest (``token_ids`` always counts as kept); the entropy stays that of the full distribution.
        chunk_size: tokens per chunk. Beside the gradient of ``logits`` itself, memory is a few [chunk_size, vocab].

    Returns:
        ``log_probs``, of the shape of ``token_ids``, and ``entropy`` [tokens], in nats; float32, or float64 for float64
        logits. A token that the loss masks out gets a gradient of exactly 0, whatever its logits are (even NaN).

    Raises:
        ContractError: shapes or devices do not fit, or a temperature is not above 0.
    """
    return _score(logits, None, token_ids, temperature, keep_mask, chunk_size)


def score_hidden_states(
    hidden_states: Float[Tensor, "tokens width"],
    lm_head: Float[Tensor, "vocab width"],
    token_ids: Int[Tensor, "tokens"] | Int[Tensor, "tokens topk"],
    *,
    temperature: float | Float[Tensor, "tokens"] = 1.0,
    keep_mask: Bool[Tensor, "tokens vocab"] | None = None,
    chunk_size: int = 1024,
) -> Scores:
    """:func:`score_logits` of ``hidden_states @ lm_head.T``, without ever holding [tokens, vocab] logits.

    Both ``hidden_states`` and ``lm_head`` receive gradients, recomputed chunk by chunk in the backward pass. The
    product is computed in the dtype of ``hidden_states``, the rest in float32 or float64, under autocast too.
    """
    return _score(hidden_states, lm_head, token_ids, temperature, keep_mask, chunk_size)


def _score(
    states: Tensor,
    weight: Tensor | None,
    token_ids: Tensor,
    temperature: float | Tensor,
    keep_mask: Tensor | None,
    chunk_size: int,
) -> Scores:
    name = "logits" if weight is None else "hidden_states"
    found = [*shape_violations(name, states, weight, "lm_head"), *temperature_violations(temperature, states)]
    found += _companion_violations(name, states, weight, token_ids, keep_mask)
    raise_violations("score_logits" if weight is None else "score_hidden_states", found)
    ids = token_ids.long() if token_ids.dim() == 2 else token_ids.long().unsqueeze(-1)
    heat = temperature_per_token(temperature, states)
    log_probs, entropy = scores_of_states(states, weight, ids, heat, keep_mask, chunk_size)
    return Scores(log_probs.view(token_ids.shape), entropy)


def shape_violations(name: str, states: Tensor, weight: Tensor | None, weight_name: str) -> Iterator[Violation]:
    """What is wrong with a pair of states [tokens, width] and output layer [vocab, width]."""
    if states.dim() != 2:
        hint = "pack the rows that predict response tokens end to end: see Layout.response_from_predictions"
        yield Violation(name, "shape", "two dimensions, tokens first", f"shape {list(states.shape)}", hint)
    elif weight is not None and (weight.dim() != 2 or weight.shape[1] != states.shape[1]):
        found = f"shape {list(weight.shape)}"
        yield Violation(weight_name, "shape", f"[vocab, {states.shape[1]}], the width of {name}", found)
    if weight is not None and weight.device != states.device:
        yield Violation(weight_name, "device", f"{states.device}, as {name}", str(weight.device))


def temperature_violations(temperature: float | Tensor, states: Tensor) -> Iterator[Violation]:
    """What is wrong with a temperature. Values on an accelerator are not read, which would wait for the device."""
    if not isinstance(temperature, Tensor):
        if not (math.isfinite(temperature) and temperature > 0):
            yield Violation("temperature", "metadata", "a finite number above 0", str(temperature), _GREEDY)
        return
    if temperature.shape != states.shape[:1]:
        found = f"shape {list(temperature.shape)}"
        yield Violation("temperature", "shape", f"a number, or [{states.shape[0]}], one per token", found)
    elif temperature.device.type == "cpu" and not bool((temperature > 0).all()):
        yield Violation("temperature", "metadata", "above 0 for every token", f"min {temperature.min()}", _GREEDY)


_GREEDY = "a greedy sampler has no log-probs to learn from; score it with the temperature the student trains at"


def temperature_per_token(temperature: float | Tensor, states: Tensor) -> Tensor:
    """[tokens], on the device of ``states``, in the dtype in which logits are divided."""
    dtype = working_dtype(states)
    if isinstance(temperature, Tensor):
        return temperature.detach().to(states.device, dtype)
    return torch.full((1,), temperature, dtype=dtype, device=states.device).expand(states.shape[0])


def _companion_violations(
    name: str, states: Tensor, weight: Tensor | None, token_ids: Tensor, keep_mask: Tensor | None
) -> Iterator[Violation]:
    tokens = states.shape[0] if states.dim() else 0
    if token_ids.dim() not in (1, 2) or token_ids.shape[0] != tokens:
        expected = f"[{tokens}] or [{tokens}, topk], one row for each of {name}"
        yield Violation("token_ids", "shape", expected, f"shape {list(token_ids.shape)}")
    if token_ids.is_floating_point() or token_ids.dtype == torch.bool:
        yield Violation("token_ids", "dtype", "integers", str(token_ids.dtype))
    vocab = (states if weight is None else weight).shape[-1 if weight is None else 0]
    if keep_mask is not None and keep_mask.shape != (tokens, vocab):
        yield Violation("keep_mask", "shape", f"[{tokens}, {vocab}]", f"shape {list(keep_mask.shape)}")
    if keep_mask is not None and keep_mask.dtype != torch.bool:
        yield Violation("keep_mask", "dtype", "torch.bool", str(keep_mask.dtype))
    for other, tensor in (("token_ids", token_ids), ("keep_mask", keep_mask)):
        if tensor is not None and tensor.device != states.device:
            yield Violation(other, "device", f"{states.device}, as {name}", str(tensor.device))
