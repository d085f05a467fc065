"""Divergences over the whole vocabulary, from logits or straight from hidden states, in chunks of tokens.

Row t must be the one that predicts response token t, on both sides. The teacher is a constant and never receives a
gradient; it may lie on another device (its chunks are moved). The result is bound to the batch::

    micro = micro.bind(divergence=divergence_of_logits(logits, teacher_logits, beta=0.0))
    loss = distillation_loss(micro, FullVocabulary())
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from rollout_contract.errors import Violation, raise_violations
from rollout_contract.kernels.divergence import Interpolation, divergence_of_states
from rollout_contract.log_probs import shape_violations, temperature_per_token, temperature_violations


def divergence_of_logits(
    logits: Float[Tensor, "tokens vocab"],
    teacher_logits: Float[Tensor, "tokens vocab"],
    *,
    beta: float,
    interpolation: Interpolation = "mixture",
    temperature: float | Float[Tensor, "tokens"] = 1.0,
    chunk_size: int = 1024,
) -> Float[Tensor, "tokens"]:
    """The divergence between student and teacher at each token, in nats, live in ``logits``.

    Args:
        logits, teacher_logits: raw, before the temperature. A logit of -inf is an impossible token.
        beta: 0 is forward, KL(teacher || student); 1 is reverse, KL(student || teacher).
        interpolation: between them, ``mixture`` is the generalised Jensen-Shannon divergence of GKD
            (arXiv:2306.13649), ``linear`` is (1 - beta) forward + beta reverse (NeMo-RL's ``mixed``, whose weight is
            1 - beta). TRL (GKD, SDPO) and Liger have the mixture with the same beta.
        temperature: divides the logits of both sides; no factor of temperature^2 is applied, as in TRL and Liger.
        chunk_size: tokens per chunk.

    Returns:
        [tokens] float32, or float64 for float64 logits. A token that the loss masks out gets a gradient of exactly 0.

    Raises:
        ContractError: shapes or vocabularies do not fit, or ``beta`` or a temperature is out of range.
    """
    return _divergence(logits, None, teacher_logits, None, beta, interpolation, temperature, chunk_size)


def divergence_of_hidden_states(
    hidden_states: Float[Tensor, "tokens width"],
    lm_head: Float[Tensor, "vocab width"],
    teacher_hidden_states: Float[Tensor, "tokens teacher_width"],
    teacher_lm_head: Float[Tensor, "vocab teacher_width"],
    *,
    beta: float,
    interpolation: Interpolation = "mixture",
    temperature: float | Float[Tensor, "tokens"] = 1.0,
    chunk_size: int = 1024,
) -> Float[Tensor, "tokens"]:
    """:func:`divergence_of_logits` of the two ``hidden_states @ lm_head.T``, never holding [tokens, vocab] logits.

    ``hidden_states`` and ``lm_head`` receive gradients, recomputed chunk by chunk in the backward pass; the teacher's
    receive none.
    """
    return _divergence(
        hidden_states, lm_head, teacher_hidden_states, teacher_lm_head, beta, interpolation, temperature, chunk_size
    )


def _divergence(
    states: Tensor,
    weight: Tensor | None,
    teacher_states: Tensor,
    teacher_weight: Tensor | None,
    beta: float,
    interpolation: Interpolation,
    temperature: float | Tensor,
    chunk_size: int,
) -> Tensor:
    subject = "divergence_of_logits" if weight is None else "divergence_of_hidden_states"
    raise_violations(subject, _violations(states, weight, teacher_states, teacher_weight, beta, interpolation))
    raise_violations(subject, temperature_violations(temperature, states))
    teacher_states = teacher_states.detach()
    teacher_weight = None if teacher_weight is None else teacher_weight.detach()
    heat = temperature_per_token(temperature, states)
    return divergence_of_states(states, weight, teacher_states, teacher_weight, heat, beta, interpolation, chunk_size)


def _violations(
    states: Tensor,
    weight: Tensor | None,
    teacher_states: Tensor,
    teacher_weight: Tensor | None,
    beta: float,
    interpolation: str,
) -> Iterator[Violation]:
    name = "logits" if weight is None else "hidden_states"
    shapes = [
        *shape_violations(name, states, weight, "lm_head"),
        *shape_violations(f"teacher_{name}", teacher_states, teacher_weight, "teacher_lm_head"),
    ]
    yield from shapes
    if not shapes:
        yield from _mismatches(name, states, weight, teacher_states, teacher_weight)
    if not 0.0 <= beta <= 1.0:
        yield Violation("beta", "metadata", "0 (forward) to 1 (reverse)", str(beta))
    if interpolation not in ("mixture", "linear"):
        yield Violation("interpolation", "metadata", "'mixture' or 'linear'", repr(interpolation))


def _mismatches(
    name: str, states: Tensor, weight: Tensor | None, teacher_states: Tensor, teacher_weight: Tensor | None
) -> Iterator[Violation]:
    if states.shape[0] != teacher_states.shape[0]:
        hint = "score the student's own token ids with the teacher, never text that is tokenised again"
        found = f"{teacher_states.shape[0]} tokens"
        yield Violation(f"teacher_{name}", "shape", f"{states.shape[0]} tokens, as {name}", found, hint)
    vocab = states.shape[1] if weight is None else weight.shape[0]
    teacher_vocab = teacher_states.shape[1] if teacher_weight is None else teacher_weight.shape[0]
    if vocab != teacher_vocab:
        teacher_name = "teacher_logits" if teacher_weight is None else "teacher_lm_head"
        hint = (
            "the ids must mean the same tokens on both sides. If one side is merely padded, cut the padding off; "
            "different tokenizers need an alignment first"
        )
        yield Violation(teacher_name, "shape", f"a vocabulary of {vocab}, as the student's", str(teacher_vocab), hint)
