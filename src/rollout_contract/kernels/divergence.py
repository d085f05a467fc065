"""Divergences between a student's and a teacher's distribution, over whole vocabularies or any set of outcomes.

``beta`` walks from forward to reverse: 0 is KL(teacher || student), 1 is KL(student || teacher). In between,
``"mixture"`` is the generalised Jensen-Shannon divergence of GKD (arXiv:2306.13649), with
M = (1 - beta) student + beta teacher: beta KL(teacher || M) + (1 - beta) KL(student || M); ``"linear"`` is
(1 - beta) KL(teacher || student) + beta KL(student || teacher).

Outcomes of log-prob -inf are impossible and count for nothing. The teacher is a constant.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract.kernels.projection import ProjectionGradients, chunks, scaled_logits

Interpolation = Literal["mixture", "linear"]


def kl_terms(
    log_p: Float[Tensor, "tokens vocab"], log_q: Float[Tensor, "tokens vocab"]
) -> Float[Tensor, "tokens vocab"]:
    """p (log p - log q), 0 where p is 0, in value and gradient; infinite where only q is 0."""
    possible = log_p > float("-inf")
    log_p, log_q = log_p.where(possible, 0.0), log_q.where(possible, 0.0)
    return torch.where(possible, log_p.exp() * (log_p - log_q), 0.0)


def kl(log_p: Float[Tensor, "tokens vocab"], log_q: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens"]:
    """KL(p || q)."""
    return kl_terms(log_p, log_q).sum(-1)


def mixture(
    student: Float[Tensor, "tokens vocab"], teacher: Float[Tensor, "tokens vocab"], beta: float
) -> Float[Tensor, "tokens vocab"]:
    """log((1 - beta) p_student + beta p_teacher); 0 where both are impossible, so that the gradient is finite."""
    possible = (student > float("-inf")) | (teacher > float("-inf"))
    student, teacher = student.where(possible, 0.0), teacher.where(possible, 0.0)
    return torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))


def divergence(
    student: Float[Tensor, "tokens vocab"],
    teacher: Float[Tensor, "tokens vocab"],
    beta: float,
    interpolation: Interpolation = "mixture",
) -> Float[Tensor, "tokens"]:
    """The divergence of each token, in nats, from log-probs."""
    if beta == 0.0:
        return kl(teacher, student)
    if beta == 1.0:
        return kl(student, teacher)
    if interpolation == "linear":
        return (1 - beta) * kl(teacher, student) + beta * kl(student, teacher)
    middle = mixture(student, teacher, beta)
    return beta * kl(teacher, middle) + (1 - beta) * kl(student, middle)


def divergence_gradient(
    student: Float[Tensor, "tokens vocab"],
    teacher: Float[Tensor, "tokens vocab"],
    beta: float,
    interpolation: Interpolation = "mixture",
) -> Float[Tensor, "tokens vocab"]:
    """d divergence / d student logits, for log-probs over the whole vocabulary."""
    if beta == 0.0:
        return student.exp() - teacher.exp()
    if beta == 1.0 or interpolation == "linear":
        terms = kl_terms(student, teacher)
        reverse = terms - student.exp() * terms.sum(-1, keepdim=True)
        return reverse if beta == 1.0 else beta * reverse + (1 - beta) * (student.exp() - teacher.exp())
    terms = kl_terms(student, mixture(student, teacher, beta))
    return (1 - beta) * (terms - student.exp() * terms.sum(-1, keepdim=True))


def divergence_of_states(
    states: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"] | None,
    teacher_states: Float[Tensor, "tokens teacher_width"],
    teacher_weight: Float[Tensor, "vocab teacher_width"] | None,
    temperature: Float[Tensor, "tokens"],
    beta: float,
    interpolation: Interpolation,
    chunk_size: int,
) -> Float[Tensor, "tokens"]:
    """The divergence of softmax(states @ weight.T / temperature) from the teacher's distribution.

    Without a weight, states are logits. The teacher may lie on another device; its chunks are moved.
    """
    divergence: Tensor = _DivergenceOfStates.apply(  # type: ignore[no-untyped-call]
        states, weight, teacher_states, teacher_weight, temperature, beta, interpolation, chunk_size
    )
    return divergence


class _DivergenceOfStates(torch.autograd.Function):
    @staticmethod
    def forward(
        states: Tensor,
        weight: Tensor | None,
        teacher_states: Tensor,
        teacher_weight: Tensor | None,
        temperature: Tensor,
        beta: float,
        interpolation: Interpolation,
        chunk_size: int,
    ) -> Tensor:
        columns = chunks(chunk_size, states, teacher_states, temperature)
        return torch.cat(
            [
                divergence(*_both(part, weight, teacher_part, teacher_weight, heat), beta, interpolation)
                for part, teacher_part, heat in columns
            ]
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.beta, ctx.interpolation, ctx.chunk_size = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (upstream,) = grad_outputs
        states, weight, teacher_states, teacher_weight, temperature = ctx.saved_tensors
        for_states, for_weight = ctx.needs_input_grad[:2]
        gradients = ProjectionGradients(weight, for_states=for_states, for_weight=for_weight)
        for part, teacher_part, heat, g in chunks(ctx.chunk_size, states, teacher_states, temperature, upstream):
            both = _both(part, weight, teacher_part, teacher_weight, heat)
            gradient = g.unsqueeze(-1) * divergence_gradient(*both, ctx.beta, ctx.interpolation)
            gradients.add(part, heat, gradient, g != 0)
        return *gradients.finish(), None, None, None, None, None, None


def _both(
    states: Tensor, weight: Tensor | None, teacher_states: Tensor, teacher_weight: Tensor | None, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probs of student and teacher over the vocabulary; the teacher's computed where it lies, then moved."""
    student = scaled_logits(states, weight, temperature).log_softmax(-1)
    teacher = scaled_logits(teacher_states, teacher_weight, temperature.to(teacher_states.device)).log_softmax(-1)
    return student, teacher.to(student)
