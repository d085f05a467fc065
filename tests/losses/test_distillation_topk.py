"""Distillation on a few outcomes per token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollout_contract.distillation import (
    FlooredTopKDivergence,
    TopKDivergence,
    TopKReverseKL,
    distillation_loss,
    divergence_of_logits,
    topk_support,
)
from rollout_contract.errors import LengthError, MissingFieldError, NoGraphError, ShapeError
from rollout_contract.kernels.topk import set_weights, with_outside
from rollout_contract.log_probs import score_logits
from rollout_contract.schemas import TopKBatch, TopKEntropyBatch

TOKENS, VOCAB, K = 5, 9, 4
MASK = [1, 0, 1, 1, 1]
TERMS: list[Any] = [
    TopKDivergence(),
    TopKDivergence(beta=0.0),
    TopKDivergence(beta=0.4),
    TopKDivergence(beta=0.4, interpolation="linear", outside="ignore"),
    TopKDivergence(beta=0.5, outside="renormalise"),
    FlooredTopKDivergence(),
    FlooredTopKDivergence(beta=0.0),
    TopKReverseKL(),
    TopKReverseKL(weights="teacher"),
    TopKReverseKL(weights="uniform", renormalise=False),
]
every_term = pytest.mark.parametrize("term", TERMS, ids=repr)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


STUDENT, TEACHER = random(TOKENS, VOCAB), random(TOKENS, VOCAB, seed=1)


def step(logits: Tensor, ids: Tensor, members: Tensor | None = None, **changes: Any) -> TopKEntropyBatch:
    """A bound batch over the outcomes ``ids``."""
    fields: dict[str, Any] = {
        "response_lengths": [3, 2],
        "loss_mask": MASK,
        "topk_ids": ids,
        "teacher_topk_log_probs": score_logits(TEACHER, ids).log_probs,
    }
    fields |= {} if members is None else {"topk_mask": members}
    scores = score_logits(logits, ids)
    late = {"topk_log_probs": scores.log_probs, "entropy": scores.entropy}
    late |= {name: changes.pop(name) for name in tuple(changes) if name in late}
    return TopKEntropyBatch(**(fields | changes)).weighted("sum").bind(**late)


def top(logits: Tensor, k: int = K) -> Tensor:
    return logits.topk(k).indices


def run(term: Any, ids: Tensor | None = None, **changes: Any) -> tuple[Tensor, Tensor]:
    logits = STUDENT.clone().requires_grad_()
    loss = distillation_loss(step(logits, top(STUDENT) if ids is None else ids, **changes), term)
    return loss.value.detach(), torch.autograd.grad(loss.value, logits)[0]


# -- the sets ----------------------------------------------------------------------------------------------------------

MINE, THEIRS = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[3, 1, 7], [0, 1, 2]])
SETS: list[tuple[Any, list[set[int]]]] = [
    ("student", [{1, 2, 3}, {4, 5, 6}]),
    ("teacher", [{3, 1, 7}, {0, 1, 2}]),
    ("union", [{1, 2, 3, 7}, {0, 1, 2, 4, 5, 6}]),
    ("intersection", [{1, 3}, set()]),
    ("xor", [{2, 7}, {0, 1, 2, 4, 5, 6}]),
]


@pytest.mark.parametrize(("support", "expected"), SETS)
def test_supports(support: Any, expected: list[set[int]]) -> None:
    ids, members = topk_support(MINE, THEIRS, support)
    found = [list(row[keep].tolist()) for row, keep in zip(ids, members, strict=True)]
    assert [set(row) for row in found] == expected
    assert all(len(row) == len(set(row)) for row in found), "an id is marked once"


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", ["tail", "renormalise", "ignore"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_whole_vocabulary_is_the_full_divergence(outside: Any, beta: float) -> None:
    """With every outcome in the set, all three rules agree with the full divergence (the tail up to its floor)."""
    everything = torch.arange(VOCAB).expand(TOKENS, VOCAB)
    value, gradient = run(TopKDivergence(beta=beta, outside=outside, tail_floor=1e-12), everything)
    logits = STUDENT.clone().requires_grad_()
    weights = torch.tensor(MASK, dtype=torch.float64)
    expected = (weights * divergence_of_logits(logits, TEACHER, beta=beta)).sum()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


def test_the_tail_is_one_outcome_for_the_rest() -> None:
    log_probs = STUDENT.log_softmax(-1)[:, :3]
    found = with_outside(log_probs, torch.ones_like(log_probs).bool(), "tail").exp()
    torch.testing.assert_close(found.sum(-1), torch.ones(TOKENS, dtype=torch.float64))
    torch.testing.assert_close(found[:, :3], log_probs.exp())


def test_the_tail_keeps_a_finite_log_when_nothing_is_left() -> None:
    sure = torch.tensor([[0.0, -200.0]]).requires_grad_()
    found = with_outside(sure, torch.ones(1, 2).bool(), "tail")
    assert found[0, 2].item() == pytest.approx(math.log(1e-7), rel=1e-3)
    assert torch.isfinite(torch.autograd.grad(found.sum(), sure)[0]).all()


def test_the_floor_pays_for_what_lies_outside() -> None:
    term = FlooredTopKDivergence(floor=-50.0)
    value, _ = run(term, top(TEACHER))
    p, q = STUDENT.log_softmax(-1), TEACHER.log_softmax(-1)
    ids = top(TEACHER)
    inside = torch.zeros_like(p, dtype=torch.bool).scatter(1, ids, True)
    per_token = torch.where(inside, p.exp() * (p - q), p.exp() * (p + 50.0)).sum(-1)
    torch.testing.assert_close(value, (per_token * torch.tensor(MASK)).sum())


@pytest.mark.parametrize("weights", ["student", "teacher", "uniform"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_topk_reverse_kl_by_hand(weights: Any, renormalise: bool) -> None:
    ids = top(STUDENT)
    value, _ = run(TopKReverseKL(weights=weights, renormalise=renormalise), ids)
    p, q = (logits.log_softmax(-1).gather(1, ids) for logits in (STUDENT, TEACHER))
    w = {"student": p, "teacher": q, "uniform": torch.zeros_like(p)}[weights].exp()
    w = w / w.sum(-1, keepdim=True) if renormalise else w
    torch.testing.assert_close(value, ((w * (p - q)).sum(-1) * torch.tensor(MASK)).sum())


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_topk_reverse_kl_over_everything_has_the_gradient_of_the_reverse_kl() -> None:
    everything = torch.arange(VOCAB).expand(TOKENS, VOCAB)
    _, found = run(TopKReverseKL(renormalise=False), everything)
    logits = STUDENT.clone().requires_grad_()
    weights = torch.tensor(MASK, dtype=torch.float64)
    expected = (weights * divergence_of_logits(logits, TEACHER, beta=1.0)).sum()
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits)[0])


@pytest.mark.parametrize(
    "term",
    [t for t in TERMS if not isinstance(t, FlooredTopKDivergence) and getattr(t, "outside", "") != "ignore"],
    ids=repr,
)
def test_agreement_leaves_nothing_to_learn(term: Any) -> None:
    logits = TEACHER.clone().requires_grad_()
    loss = distillation_loss(step(logits, top(TEACHER)), term)
    assert loss.value.item() == pytest.approx(0.0, abs=1e-12)
    gradient = torch.autograd.grad(loss.value, logits)[0]
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("term", [t for t in TERMS if not isinstance(t, TopKReverseKL)], ids=repr)
def test_gradcheck(term: Any) -> None:
    ids, members = topk_support(top(STUDENT, 3), top(TEACHER, 3), "union")
    assert torch.autograd.gradcheck(
        lambda logits: distillation_loss(step(logits, ids, members), term).value, (STUDENT.clone().requires_grad_(),)
    )


@every_term
def test_the_teacher_gets_no_gradient(term: Any) -> None:
    teacher = score_logits(TEACHER, top(STUDENT)).log_probs.requires_grad_()
    logits = STUDENT.clone().requires_grad_()
    distillation_loss(step(logits, top(STUDENT), teacher_topk_log_probs=teacher), term).backward()
    assert teacher.grad is None
    assert logits.grad is not None


# -- masks -------------------------------------------------------------------------------------------------------------


@every_term
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_tokens_reach_neither_value_nor_gradient(term: Any, garbage: float) -> None:
    rows = torch.tensor(MASK).bool().unsqueeze(-1)
    teacher = score_logits(TEACHER, top(STUDENT)).log_probs
    scores = score_logits(STUDENT, top(STUDENT))

    def run(fill: float | None) -> tuple[Tensor, ...]:
        live = [x.clone().requires_grad_() for x in scores]
        own = [x if fill is None else x.masked_fill(~m, fill) for x, m in zip(live, (rows, rows[:, 0]), strict=True)]
        fixed = teacher if fill is None else teacher.masked_fill(~rows, fill)
        batch = step(
            STUDENT.clone().requires_grad_(),
            top(STUDENT),
            teacher_topk_log_probs=fixed,
            topk_log_probs=own[0],
            entropy=own[1],
        )
        loss = distillation_loss(batch, term)
        return loss.value.detach(), *torch.autograd.grad(loss.value, live, allow_unused=True, materialize_grads=True)

    for found, expected in zip(run(garbage), run(None), strict=True):
        assert torch.equal(found, expected)


@every_term
def test_entries_outside_the_set_do_not_count(term: Any) -> None:
    ids, members = topk_support(top(STUDENT, 3), top(TEACHER, 3), "intersection")
    teacher = score_logits(TEACHER, ids).log_probs
    expected = run(term, ids, members=members)
    found = run(term, ids, members=members, teacher_topk_log_probs=teacher.masked_fill(~members, -12345.0))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@every_term
def test_an_empty_set_is_finite(term: Any) -> None:
    value, gradient = run(term, members=torch.zeros(TOKENS, K, dtype=torch.bool))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    if not isinstance(term, FlooredTopKDivergence):
        assert value == 0.0
        assert torch.equal(gradient, torch.zeros_like(gradient))


@every_term
def test_float32_with_a_certain_student_and_an_opposite_teacher(term: Any) -> None:
    ids = torch.arange(3).expand(TOKENS, 3)
    logits = torch.tensor([[200.0, -200.0, 0.0]] * TOKENS, requires_grad=True)
    teacher = torch.tensor([[-400.0, -1e-6, -200.0]] * TOKENS)
    loss = distillation_loss(step(logits, ids, teacher_topk_log_probs=teacher), term)
    gradient = torch.autograd.grad(loss.value, logits)[0]
    assert torch.isfinite(loss.value)
    assert torch.isfinite(gradient).all()


def test_metrics_say_how_much_the_set_misses() -> None:
    logits = STUDENT.clone().requires_grad_()
    found = distillation_loss(step(logits, top(STUDENT)), TopKDivergence()).metrics.compute()
    keep = torch.tensor(MASK).bool()
    mass = STUDENT.softmax(-1).gather(1, top(STUDENT)).sum(-1)[keep].mean()
    assert found["topk_student_mass"] == pytest.approx(float(mass))
    assert found["topk_size"] == K
    assert 0.0 < found["topk_teacher_mass"] < found["topk_student_mass"] < 1.0


def test_set_weights_of_an_empty_set_are_zero() -> None:
    log_probs = torch.tensor([[-1.0, -2.0]])
    for renormalise in (True, False):
        assert torch.equal(set_weights(log_probs, torch.zeros(1, 2).bool(), renormalise), torch.zeros(1, 2))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_one_outcome_renormalised_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least 2 outcomes when renormalised"):
        run(TopKDivergence(outside="renormalise"), top(STUDENT, 1))
    run(TopKDivergence(), top(STUDENT, 1))


def test_a_student_without_a_graph_is_refused() -> None:
    with pytest.raises(NoGraphError, match="topk_log_probs"):
        step(STUDENT, top(STUDENT))


def test_the_shapes_of_both_sides_must_agree() -> None:
    with pytest.raises(ShapeError, match="topk"):
        step(STUDENT.clone().requires_grad_(), top(STUDENT), teacher_topk_log_probs=-torch.ones(TOKENS, K + 1))
    with pytest.raises((ShapeError, LengthError)):
        step(STUDENT.clone().requires_grad_(), top(STUDENT), teacher_topk_log_probs=-torch.ones(TOKENS - 1, K))


def test_the_floor_needs_the_entropy() -> None:
    batch = TopKBatch(
        response_lengths=[TOKENS],
        loss_mask=[1] * TOKENS,
        topk_ids=top(STUDENT),
        teacher_topk_log_probs=-torch.ones(TOKENS, K),
    )
    with pytest.raises(MissingFieldError, match="entropy"):
        distillation_loss(batch.weighted("sum"), FlooredTopKDivergence())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("term", "wrong"),
    [(TopKDivergence, {"beta": 1.5}), (TopKDivergence, {"outside": "drop"}), (FlooredTopKDivergence, {"floor": 1.0})],
)
def test_wrong_options_are_refused(term: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        term(**wrong)
