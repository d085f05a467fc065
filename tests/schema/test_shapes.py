"""Shapes against the layout and against each other, with the repair for the usual mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, RolloutBatch, Trainable, settings, unbound
from rollout_contract.errors import ShapeError
from tests.schema.batches import LENGTHS, MASK, policy_batch


class Wide(RolloutBatch):
    """A field of one's own on every axis."""

    score: Fixed[Float[Tensor, "tokens"]] = unbound()
    teacher_top: Fixed[Float[Tensor, "tokens topk"]] = unbound()
    teacher_ids: Fixed[Int[Tensor, "tokens topk"]] = unbound()
    student_top: Trainable[Float[Tensor, "tokens topk"]] = unbound()
    pairs: Fixed[Float[Tensor, "tokens 2"]] = unbound()
    experts: Fixed[Int[Tensor, "sequence layers routed"]] = unbound()
    reward: Fixed[Float[Tensor, "batch"]] = unbound()
    components: Fixed[Float[Tensor, "batch rewards"]] = unbound()
    baseline: Fixed[Float[Tensor, "groups"]] = unbound()
    weights: Fixed[Float[Tensor, "groups rewards"]] = unbound()


def wide(**fields: Any) -> Wide:
    plain = {"response_lengths": LENGTHS, "prompt_lengths": [1, 3], "group_ids": [7, 7], "loss_mask": MASK}
    return Wide(**(plain | fields))


def refused(**fields: Any) -> ShapeError:
    with pytest.raises(ShapeError) as caught:
        wide(**fields)
    return caught.value


def test_fields_of_every_axis() -> None:
    batch = wide(
        score=torch.zeros(5),
        teacher_top=torch.zeros(5, 4),
        teacher_ids=torch.zeros(5, 4, dtype=torch.long),
        pairs=torch.zeros(5, 2),
        experts=torch.zeros(9, 3, 2, dtype=torch.long),
        reward=torch.zeros(2),
        components=torch.zeros(2, 3),
        baseline=torch.zeros(1),
        weights=torch.zeros(1, 3),
    )
    assert batch.experts.shape == (9, 3, 2)
    bound = batch.bind(student_top=torch.zeros(5, 4, requires_grad=True))
    assert bound.student_top.shape == (5, 4)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("score", [4], "[5 tokens]"),
        ("score", [6], "[5 tokens]"),
        ("score", [2], "[5 tokens]"),
        ("score", [5, 1], "[5 tokens]"),
        ("score", [1, 5], "[5 tokens]"),
        ("score", [], "[5 tokens]"),
        ("teacher_top", [5], "[5 tokens, topk]"),
        ("teacher_top", [4, 3], "[5 tokens, 3 topk]"),
        ("teacher_top", [5, 3, 1], "[5 tokens, 3 topk]"),
        ("pairs", [5, 3], "[5 tokens, 2]"),
        ("experts", [5, 3, 2], "[9 sequence, 3 layers, 2 routed]"),
        ("reward", [5], "[2 batch]"),
        ("reward", [2, 1], "[2 batch]"),
        ("reward", [1], "[2 batch]"),
        ("baseline", [2], "[1 groups]"),
    ],
)
def test_wrong_shapes(name: str, shape: list[int], expected: str) -> None:
    dtype = torch.long if name == "experts" else torch.float32
    error = refused(**{name: torch.zeros(shape, dtype=dtype)})
    prefix = "i64" if name == "experts" else "f32"
    assert (error.field, error.expected, error.found) == (name, expected, f"{prefix}{shape}")


def test_named_dimensions_are_bound_across_fields() -> None:
    error = refused(teacher_top=torch.zeros(5, 4), teacher_ids=torch.zeros(5, 3, dtype=torch.long))
    assert error.field == "teacher_ids"
    assert error.expected == "[5 tokens, 4 topk] (topk as in teacher_top)"
    error = refused(components=torch.zeros(2, 3), weights=torch.zeros(1, 2))
    assert error.expected == "[1 groups, 3 rewards] (rewards as in components)"


def test_named_dimensions_are_bound_by_what_the_batch_has() -> None:
    batch = wide(teacher_top=torch.zeros(5, 4))
    with pytest.raises(ShapeError, match="topk as in teacher_top"):
        batch.extend(Wide, teacher_ids=torch.zeros(5, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match="topk as in teacher_top"):
        batch.bind(student_top=torch.zeros(5, 3, requires_grad=True))


REPAIRS: list[tuple[list[int], str]] = [
    ([], "a scalar is never broadcast"),
    ([5, 1], "a trailing dimension of 1 broadcasts silently"),
    ([2, 3], "this looks padded: Layout(response_lengths).pack(tensor)"),
    ([2], "one value per sample where one per token belongs: Layout(response_lengths).expand(tensor)"),
    ([3], "one entry short per sample: this looks like scores that start at the second token"),
    ([9], "this covers prompts too: Layout.response_from_sequence(tensor)"),
    ([7], "pack the response tokens of all samples end to end"),
]


@pytest.mark.parametrize(("shape", "repair"), REPAIRS, ids=[str(shape) for shape, _ in REPAIRS])
def test_the_usual_mistakes_have_their_repair(shape: list[int], repair: str) -> None:
    assert refused(score=torch.zeros(shape)).hint.startswith(repair)


def test_per_token_where_per_sample_belongs() -> None:
    assert refused(reward=torch.zeros(5)).hint == "one value per token where one per sample belongs"


def test_a_scalar_in_place_of_advantages_is_never_broadcast() -> None:
    for value in (torch.tensor(1.0), torch.tensor([1.0])):
        with pytest.raises(ShapeError):
            policy_batch(advantages=value)


@pytest.mark.parametrize("size", [1, 3])
def test_square_batches_are_no_exception(size: int) -> None:
    """As many samples as tokens per sample, or one of each, is where broadcasting is silent."""
    lengths, tokens = [size] * size, size * size
    given = {"response_lengths": lengths, "loss_mask": torch.ones(tokens), "old_log_probs": -torch.ones(tokens)}
    for shape in ([size, size], [size, 1], [tokens, 1], [1, tokens], []):
        with pytest.raises(ShapeError):
            policy_batch(**given, advantages=torch.zeros(shape))
    if size > 1:
        with pytest.raises(ShapeError):
            policy_batch(**given, advantages=torch.zeros(size))


def test_every_level_but_off_looks_at_shapes() -> None:
    with settings(level="structure"), pytest.raises(ShapeError):
        policy_batch(advantages=torch.zeros(2))
    with settings(level="off"):
        assert policy_batch(advantages=torch.zeros(2)).advantages.shape == (2,)
