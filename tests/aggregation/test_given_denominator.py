"""A trainer that counts its step itself: weights from a given denominator, on a part of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rollout_contract import RolloutBatch
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import Correction
from rollout_contract.errors import ContractError, CorrectionError, MetadataError, RowsError, ShapeError

MASK = [[1, 1, 0], [1, 1, 1, 1], [0], [1, 1]]
AGGREGATIONS = [
    (Aggregation(mode="token-mean"), 8),
    (Aggregation(mode="seq-mean-token-mean"), 3),
    (Aggregation(mode="seq-mean-token-mean", count_empty=True), 4),
    (Aggregation(mode="seq-mean-token-sum"), 3),
    (Aggregation(mode="constant", constant=5.0), 3),
]


def step(mask: list[list[int]] = MASK) -> RolloutBatch:
    return RolloutBatch(response_lengths=[len(row) for row in mask], loss_mask=mask)


@pytest.mark.parametrize(("aggregation", "count"), AGGREGATIONS, ids=lambda value: str(value))
@pytest.mark.parametrize("as_tensor", [False, True])
def test_parts_with_the_count_of_the_step_have_its_weights(
    aggregation: Aggregation, count: int, as_tensor: bool
) -> None:
    denominator: Any = torch.tensor(count) if as_tensor else count
    parts = [part.weighted(aggregation, denominator=denominator) for part in step().split(samples=1)]
    found = torch.cat([part.loss_weights for part in parts])
    assert torch.equal(found, step().weighted(aggregation).loss_weights)


def test_a_step_that_was_never_one_batch() -> None:
    half = step(MASK[:2]).weighted("token-mean", denominator=8.0, scale=0.5)
    assert half.loss_weights.tolist() == [1 / 16, 1 / 16, 0, 1 / 16, 1 / 16, 1 / 16, 1 / 16]


def test_a_denominator_is_taken_as_it_is() -> None:
    """A trainer that divides its count over ranks and micro-batches may come below 1."""
    batch = step([[1]]).weighted("token-mean", denominator=torch.tensor(0.25))
    assert batch.loss_weights.tolist() == [4.0]


def test_a_live_denominator_leaves_no_graph() -> None:
    live = torch.tensor(8.0, requires_grad=True)
    assert not step().weighted("token-mean", denominator=live * 2).loss_weights.requires_grad


def test_rejection_afterwards_is_refused_because_the_count_would_be_wrong() -> None:
    batch = step().weighted("token-mean", denominator=8)
    with pytest.raises(CorrectionError, match="counts that this batch does not hold"):
        batch.corrected(Correction(batch, mask=torch.zeros(10, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"aggregation": "sum", "denominator": 3}, MetadataError, "a mode with one denominator"),
        ({"aggregation": "prompt-mean", "denominator": 3}, MetadataError, "a mode with one denominator"),
        ({"aggregation": "token-mean", "denominator": 0}, MetadataError, "a number above 0"),
        ({"aggregation": "token-mean", "denominator": float("nan")}, MetadataError, "a number above 0"),
        ({"aggregation": "token-mean", "denominator": torch.ones(2)}, ShapeError, "one number"),
        ({"aggregation": "token-mean", "denominator": 3, "group": object()}, MetadataError, "or the count itself"),
    ],
)
def test_refused(arguments: dict[str, Any], error: type[ContractError], message: str) -> None:
    with pytest.raises(error, match=message):
        step().weighted(**arguments)


def test_a_part_without_the_count_is_refused_and_told_of_it() -> None:
    with pytest.raises(RowsError, match="give the step's denominator"):
        step().split(samples=1)[0].weighted("token-mean")
