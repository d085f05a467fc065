"""Log-probs of tokens and the entropy at each of them, from logits or from hidden states, in chunks.

The backward pass has a closed form: it recomputes a chunk's logits and stores nothing of size [tokens, vocab] but the
gradient that the caller asked for (with ``create_graph=True``, which differentiates it again, everything is stored).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.entropy import entropy, entropy_gradient
from rollout_contract.kernels.projection import ProjectionGradients, chunks, scaled_logits


class Scores(NamedTuple):
    """What a policy says about tokens.

    Attributes:
        log_probs: the shape of the token ids, in nats.
        entropy: [tokens], in nats, of the whole distribution that the token was drawn from.
    """

    log_probs: Tensor
    entropy: Tensor


def kept_log_probs(
    logits: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens topk"],
    keep_mask: Bool[Tensor, "tokens vocab"],
) -> Float[Tensor, "tokens vocab"]:
    """Log-probs of the renormalised distribution that a top-p or top-k filter kept; ``token_ids`` are always kept."""
    return logits.masked_fill(~keep_mask.scatter(-1, token_ids, True), float("-inf")).log_softmax(-1)


def token_scores(
    logits: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens topk"],
    keep_mask: Bool[Tensor, "tokens vocab"] | None = None,
) -> Scores:
    """Log-probs of ``token_ids`` under the kept distribution, entropy of the full one."""
    full = logits.log_softmax(-1)
    kept = full if keep_mask is None else kept_log_probs(logits, token_ids, keep_mask)
    return Scores(kept.gather(-1, token_ids), entropy(full))


def token_scores_gradient(
    logits: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens topk"],
    keep_mask: Bool[Tensor, "tokens vocab"] | None,
    log_probs_upstream: Float[Tensor, "tokens topk"] | None,
    entropy_upstream: Float[Tensor, "tokens"] | None,
) -> Float[Tensor, "tokens vocab"]:
    """d / d logits of sum(upstream x scores): sum_k g_k (onehot_k - p) for the log-probs, plus the entropy's."""
    full = logits.log_softmax(-1)
    gradient = torch.zeros_like(full)
    if entropy_upstream is not None:
        gradient = entropy_upstream.unsqueeze(-1) * entropy_gradient(full)
    if log_probs_upstream is not None:
        kept = full if keep_mask is None else kept_log_probs(logits, token_ids, keep_mask)
        gradient = gradient - log_probs_upstream.sum(-1, keepdim=True) * kept.exp()
        gradient = gradient.scatter_add(-1, token_ids, log_probs_upstream)
    return gradient


def _is_read(log_probs_upstream: Tensor | None, entropy_upstream: Tensor | None) -> Tensor:
    """Which tokens a loss reads: those with an upstream gradient that is not 0."""
    parts = [] if entropy_upstream is None else [entropy_upstream != 0]
    parts += [] if log_probs_upstream is None else [(log_probs_upstream != 0).any(-1)]
    return torch.stack(parts).any(0)


def scores_of_states(
    states: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"] | None,
    token_ids: Int[Tensor, "tokens topk"],
    temperature: Float[Tensor, "tokens"],
    keep_mask: Bool[Tensor, "tokens vocab"] | None,
    chunk_size: int,
) -> Scores:
    """Scores of ``token_ids`` under softmax(states @ weight.T / temperature); without a weight, states are logits."""
    scores: tuple[Tensor, Tensor] = _ScoresOfStates.apply(  # type: ignore[no-untyped-call]
        states, weight, token_ids, temperature, keep_mask, chunk_size
    )
    return Scores(*scores)


class _ScoresOfStates(torch.autograd.Function):
    @staticmethod
    def forward(
        states: Tensor,
        weight: Tensor | None,
        token_ids: Tensor,
        temperature: Tensor,
        keep_mask: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        scores = [
            token_scores(scaled_logits(part, weight, heat), ids, keep)
            for part, ids, heat, keep in chunks(chunk_size, states, token_ids, temperature, keep_mask)
        ]
        return torch.cat([s.log_probs for s in scores]), torch.cat([s.entropy for s in scores])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.chunk_size = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_probs_upstream, entropy_upstream = grad_outputs
        if log_probs_upstream is None and entropy_upstream is None:
            return None, None, None, None, None, None
        states, weight, token_ids, temperature, keep_mask = ctx.saved_tensors
        for_states, for_weight = ctx.needs_input_grad[:2]
        gradients = ProjectionGradients(weight, for_states=for_states, for_weight=for_weight)
        columns = (states, token_ids, temperature, keep_mask, log_probs_upstream, entropy_upstream)
        for part, ids, heat, keep, *upstream in chunks(ctx.chunk_size, *columns):
            gradient = token_scores_gradient(scaled_logits(part, weight, heat), ids, keep, *upstream)
            gradients.add(part, heat, gradient, _is_read(*upstream))
        return *gradients.finish(), None, None, None, None
