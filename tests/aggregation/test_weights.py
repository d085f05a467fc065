"""Aggregation weights against numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollout_contract import Aggregation, RolloutBatch
from rollout_contract.aggregation import Mode
from tests.properties.compare import FEW

MASK = [[1, 1, 0], [1, 1, 1, 1], [0], [], [1, 1]]
"""2, 4, 0, 0 and 2 trained tokens; samples 2 and 3 are empty."""
GROUPS = [5, 3, 3, 8, 5]
"""Group 5: samples 0 and 4. Group 3: samples 1 and 2. Group 8: nothing trained."""


def step(**changes: Any) -> RolloutBatch:
    given = {"response_lengths": [len(row) for row in MASK], "loss_mask": MASK, "group_ids": GROUPS}
    return RolloutBatch(**(given | changes))


def per_sample(batch: RolloutBatch) -> list[float]:
    """The weight of a trained token of each sample; 0 for a sample without any."""
    return [float(row.max()) if row.numel() else 0.0 for row in batch.layout.split(batch.loss_weights)]


BY_HAND: list[tuple[Mode, bool, list[F]]] = [
    # mode, count_empty, weight of the trained tokens of samples 0, 1 and 4
    ("token-mean", False, [F(1, 8), F(1, 8), F(1, 8)]),
    ("token-mean", True, [F(1, 8), F(1, 8), F(1, 8)]),
    ("seq-mean-token-mean", False, [F(1, 6), F(1, 12), F(1, 6)]),
    ("seq-mean-token-mean", True, [F(1, 10), F(1, 20), F(1, 10)]),
    ("seq-mean-token-sum", False, [F(1, 3)] * 3),
    ("seq-mean-token-sum", True, [F(1, 5)] * 3),
    ("constant", False, [F(1, 30)] * 3),
    ("constant", True, [F(1, 50)] * 3),
    ("prompt-mean", False, [F(1, 8), F(1, 8), F(1, 8)]),
    ("prompt-mean", True, [F(1, 12), F(1, 12), F(1, 12)]),
    ("group-mean-token-mean", False, [F(1, 8), F(1, 8), F(1, 8)]),
    ("group-mean-token-mean", True, [F(1, 12), F(1, 24), F(1, 12)]),
    ("sum", False, [F(1)] * 3),
    ("sum", True, [F(1)] * 3),
]


@pytest.mark.parametrize(("mode", "count_empty", "expected"), BY_HAND)
def test_by_hand(mode: Mode, count_empty: bool, expected: list[F]) -> None:
    spec = Aggregation(mode=mode, count_empty=count_empty, constant=10.0 if mode == "constant" else None)
    batch = step().weighted(spec)
    found = per_sample(batch)
    assert [found[0], found[1], found[4]] == pytest.approx([float(weight) for weight in expected], rel=1e-15)
    assert batch.loss_weights[~batch.loss_mask].tolist() == [0.0, 0.0]
    assert not batch.loss_weights.requires_grad


def test_unequal_groups_by_hand() -> None:
    """Group 0: 1 and 3 tokens; group 1: 2 tokens."""
    batch = RolloutBatch(response_lengths=[1, 3, 2], loss_mask=[1] * 6, group_ids=[0, 0, 1])
    assert per_sample(batch.weighted("prompt-mean")) == [1 / 8, 1 / 8, 1 / 4]
    assert per_sample(batch.weighted("group-mean-token-mean")) == pytest.approx([1 / 4, 1 / 12, 1 / 4])


def test_without_groups_every_sample_is_its_own() -> None:
    plain = step(group_ids=None)
    for mode in ("prompt-mean", "group-mean-token-mean"):
        assert per_sample(plain.weighted(mode)) == per_sample(plain.weighted("seq-mean-token-mean"))


def test_the_order_and_the_names_of_groups_do_not_matter() -> None:
    for mode in ("prompt-mean", "group-mean-token-mean"):
        renamed = step(group_ids=[-7, 10**12, 10**12, 0, -7])
        assert torch.equal(renamed.weighted(mode).loss_weights, step().weighted(mode).loss_weights)
        order = [4, 3, 2, 1, 0]
        moved = step().select(order).weighted(mode)
        assert per_sample(moved) == per_sample(step().weighted(mode))[::-1]


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("count_empty", [False, True])
def test_padding_samples_never_count(mode: Mode, count_empty: bool) -> None:
    spec = Aggregation(mode=mode, count_empty=count_empty, constant=10.0 if mode == "constant" else None)
    for batch in (step(), step(group_ids=None)):
        plain = batch.weighted(spec).loss_weights
        assert batch.pad_to(9).weighted(spec).loss_weights.tolist() == plain.tolist()
        assert batch.weighted(spec).pad_to(9).loss_weights.tolist() == plain.tolist()


def test_scale_multiplies_and_is_remembered() -> None:
    batch = step().weighted("token-mean", scale=8.0)
    assert per_sample(batch)[0] == 1.0
    assert str(batch.aggregation) == "token-mean, scaled by 8"
    assert str(Aggregation(mode="constant", constant=512.0, scale=2.0)) == "constant 512, scaled by 2"


def test_weights_are_exact_for_float64_losses() -> None:
    batch = RolloutBatch(response_lengths=[3], loss_mask=torch.ones(3)).weighted("token-mean")
    assert batch.loss_weights.tolist() == [1 / 3] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "mean"},
        {"mode": "constant"},
        {"mode": "token-mean", "constant": 3.0},
        {"mode": "constant", "constant": 0.0},
        {"mode": "constant", "constant": -1.0},
        {"mode": "constant", "constant": float("nan")},
        {"mode": "token-mean", "norm": 2},
    ],
    ids=str,
)
def test_contradictions_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        Aggregation(**wrong)


@pytest.mark.parametrize("mode", get_args(Mode))
@given(data=st.data())
@FEW
def test_a_loss_of_ones_has_the_value_that_its_name_says(mode: Mode, data: st.DataObject) -> None:
    """The mean of ones is 1; a sum is a number of tokens."""
    mask = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=5))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(mask), max_size=len(mask)))
    spec = Aggregation(mode=mode, constant=2.0 if mode == "constant" else None)
    batch = RolloutBatch(response_lengths=[len(row) for row in mask], loss_mask=mask, group_ids=groups)
    tokens, samples = sum(map(sum, mask)), max(sum(any(row) for row in mask), 1)
    expected = {"seq-mean-token-sum": tokens / samples, "constant": tokens / (2 * samples), "sum": tokens}
    assert float(batch.weighted(spec).loss_weights.sum()) == pytest.approx(expected.get(mode, float(tokens > 0)))
