"""Divergences over the whole vocabulary, from logits and from hidden states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.distillation import (
    FullVocabulary,
    distillation_loss,
    divergence_of_hidden_states,
    divergence_of_logits,
)
from rollout_contract.errors import ContractError, MetadataError, MissingFieldError, NoGraphError, ShapeError
from rollout_contract.schemas import DivergenceBatch

TOKENS, VOCAB, WIDTH = 7, 11, 5
BETAS = [0.0, 0.3, 0.5, 1.0]
SHAPES: list[Any] = [(beta, kind) for beta in BETAS for kind in ("mixture", "linear")]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def live(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


def textbook(student: Tensor, teacher: Tensor, beta: float, interpolation: str) -> Tensor:
    """From probabilities, which autograd differentiates."""
    p, q = student.softmax(-1), teacher.softmax(-1)

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum(-1)

    if beta in (0.0, 1.0):
        return kl(q, p) if beta == 0.0 else kl(p, q)
    if interpolation == "linear":
        return (1 - beta) * kl(q, p) + beta * kl(p, q)
    m = (1 - beta) * p + beta * q
    return beta * kl(q, m) + (1 - beta) * kl(p, m)


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
@pytest.mark.parametrize("chunk_size", [2, 1024])
def test_logits(beta: float, interpolation: Any, chunk_size: int) -> None:
    student, teacher = live(TOKENS, VOCAB), random(TOKENS, VOCAB, seed=1)
    options = {"beta": beta, "interpolation": interpolation}
    found = divergence_of_logits(student, teacher, **options, temperature=2.0, chunk_size=chunk_size)
    expected = textbook(student / 2, teacher / 2, **options)
    torch.testing.assert_close(found, expected)
    weights = torch.arange(1.0, TOKENS + 1, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((weights * found).sum(), student)[0],
        torch.autograd.grad((weights * expected).sum(), student)[0],
    )


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
def test_hidden_states_are_the_logits_they_make(beta: float, interpolation: Any) -> None:
    hidden, weight = live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)
    teacher_hidden, teacher_weight = random(TOKENS, 3, seed=2), random(VOCAB, 3, seed=3)
    options = {"beta": beta, "interpolation": interpolation, "temperature": 0.7}
    found = divergence_of_hidden_states(hidden, weight, teacher_hidden, teacher_weight, **options, chunk_size=3)
    expected = divergence_of_logits(hidden @ weight.T, teacher_hidden @ teacher_weight.T, **options)
    torch.testing.assert_close(found, expected)
    for leaf in (hidden, weight):
        gradient, wanted = (torch.autograd.grad(x.sum(), leaf, retain_graph=True)[0] for x in (found, expected))
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
def test_gradcheck_once_and_twice(beta: float, interpolation: Any) -> None:
    teacher_hidden, teacher_weight = random(3, 3, seed=2), random(4, 3, seed=3)

    def value(hidden: Tensor, weight: Tensor) -> Tensor:
        options = {"beta": beta, "interpolation": interpolation, "chunk_size": 2}
        return divergence_of_hidden_states(hidden, weight, teacher_hidden, teacher_weight, **options)

    inputs = (live(3, WIDTH), live(4, WIDTH, seed=1))
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
def test_the_teacher_never_gets_a_gradient(beta: float, interpolation: Any) -> None:
    student, teacher = live(TOKENS, VOCAB), live(TOKENS, VOCAB, seed=1)
    divergence_of_logits(student, teacher, beta=beta, interpolation=interpolation).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None
    frozen = divergence_of_logits(student.detach(), teacher, beta=beta, interpolation=interpolation)
    assert not frozen.requires_grad


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
def test_it_is_zero_without_gradient_exactly_where_both_agree(beta: float, interpolation: Any) -> None:
    student = live(TOKENS, VOCAB)
    shifted = student.detach() + 3.0  # the same distribution
    found = divergence_of_logits(student, shifted, beta=beta, interpolation=interpolation)
    found.sum().backward()
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-12, rtol=0.0)
    assert student.grad is not None
    torch.testing.assert_close(student.grad, torch.zeros_like(student), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize(("beta", "interpolation"), SHAPES)
def test_tokens_that_both_exclude_count_for_nothing(beta: float, interpolation: Any) -> None:
    student, teacher = random(TOKENS, VOCAB), random(TOKENS, VOCAB, seed=1)
    hole = torch.full((TOKENS, 2), -math.inf)
    padded = torch.cat([student, hole], -1).requires_grad_()
    options = {"beta": beta, "interpolation": interpolation}
    found = divergence_of_logits(padded, torch.cat([teacher, hole], -1), **options)
    torch.testing.assert_close(found, divergence_of_logits(student, teacher, **options))
    found.sum().backward()
    assert padded.grad is not None
    assert torch.isfinite(padded.grad).all()


def test_a_filtered_teacher_is_fine_forward_and_in_the_mixture() -> None:
    """A token that the teacher excludes makes the reverse KL infinite, and nothing else."""
    teacher = random(TOKENS, VOCAB, seed=1)
    teacher[:, 3] = -math.inf
    for beta in (0.0, 0.5):
        student = live(TOKENS, VOCAB)
        found = divergence_of_logits(student, teacher, beta=beta)
        found.sum().backward()
        assert torch.isfinite(found).all()
        assert student.grad is not None
        assert torch.isfinite(student.grad).all()
    assert torch.isinf(divergence_of_logits(random(TOKENS, VOCAB), teacher, beta=1.0)).all()


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_confident_sides_stay_finite(scale: float) -> None:
    student = (random(TOKENS, VOCAB).float() * scale).requires_grad_()
    for beta in (0.0, 0.5, 1.0):
        found = divergence_of_logits(student, -student.detach(), beta=beta)
        gradient = torch.autograd.grad(found.sum(), student)[0]
        assert torch.isfinite(found).all()
        assert torch.isfinite(gradient).all()


# -- in a batch --------------------------------------------------------------------------------------------------------

MASK = [1, 0, 1, 1, 0, 1, 1]


def step(mask: list[int] = MASK) -> DivergenceBatch:
    return DivergenceBatch(response_lengths=[3, 4], loss_mask=mask).weighted("token-mean")


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_rows_reach_neither_value_nor_gradient(garbage: float) -> None:
    rows = torch.tensor(MASK).bool().unsqueeze(-1)

    def run(fill: float | None) -> tuple[Tensor, ...]:
        hidden, teacher = random(TOKENS, WIDTH), random(TOKENS, WIDTH, seed=2)
        if fill is not None:
            hidden, teacher = hidden.masked_fill(~rows, fill), teacher.masked_fill(~rows, fill)
        hidden.requires_grad_()
        weight = live(VOCAB, WIDTH, seed=1)
        found = divergence_of_hidden_states(hidden, weight, teacher, random(VOCAB, WIDTH, seed=3), beta=0.5)
        loss = distillation_loss(step().bind(divergence=found), FullVocabulary())
        return loss.value.detach(), *torch.autograd.grad(loss.value, (hidden, weight))

    for found, expected in zip(run(garbage), run(None), strict=True):
        assert torch.equal(found, expected)


def test_the_loss_is_the_weighted_mean_and_the_metric_too() -> None:
    divergence = random(TOKENS).abs().requires_grad_()
    loss = distillation_loss(step().bind(divergence=divergence), FullVocabulary())
    kept = [d for d, m in zip(divergence.tolist(), MASK, strict=True) if m]
    assert loss.value.item() == pytest.approx(sum(kept) / 5)
    assert loss.metrics.compute() == pytest.approx({"divergence": sum(kept) / 5, "distillation_loss": sum(kept) / 5})


def test_nothing_trained_gives_zero_with_a_graph() -> None:
    logits = live(TOKENS, VOCAB)
    found = divergence_of_logits(logits, random(TOKENS, VOCAB, seed=1), beta=0.0)
    loss = distillation_loss(step([0] * 7).bind(divergence=found), FullVocabulary())
    loss.backward()
    assert loss.value.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_no_tokens() -> None:
    logits = live(0, VOCAB)
    found = divergence_of_logits(logits, random(0, VOCAB), beta=0.5)
    batch = DivergenceBatch(response_lengths=[], loss_mask=torch.zeros(0)).weighted("token-mean")
    distillation_loss(batch.bind(divergence=found), FullVocabulary()).backward()
    assert logits.grad is not None
    assert logits.grad.shape == (0, VOCAB)


def test_a_constant_divergence_is_refused() -> None:
    with pytest.raises(NoGraphError, match="divergence"):
        step().bind(divergence=random(TOKENS))
    with pytest.raises(MissingFieldError, match="divergence"):
        distillation_loss(step(), FullVocabulary())


# -- what it refuses ---------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[ContractError], str]] = [
    ({"teacher_logits": random(TOKENS - 1, VOCAB)}, ShapeError, "never text that is tokenised again"),
    ({"teacher_logits": random(TOKENS, VOCAB + 1)}, ShapeError, "a vocabulary of 11"),
    ({"teacher_logits": random(1, TOKENS, VOCAB)}, ShapeError, "tokens first"),
    ({"beta": 1.5}, MetadataError, r"0 \(forward\) to 1 \(reverse\)"),
    ({"beta": math.nan}, MetadataError, "forward"),
    ({"interpolation": "jsd"}, MetadataError, "'mixture' or 'linear'"),
    ({"temperature": 0.0}, MetadataError, "greedy"),
]


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_wrong_arguments(change: dict[str, Any], error: type[ContractError], message: str) -> None:
    arguments = {"logits": random(TOKENS, VOCAB), "teacher_logits": random(TOKENS, VOCAB), "beta": 0.5} | change
    with pytest.raises(error, match=message):
        divergence_of_logits(**arguments)


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_all_faults_at_once() -> None:
    with pytest.raises(ContractError) as caught:
        divergence_of_logits(random(TOKENS, VOCAB), random(TOKENS - 1, VOCAB + 1), beta=2.0)
    assert [violation.field for violation in caught.value.violations] == ["teacher_logits", "teacher_logits", "beta"]
