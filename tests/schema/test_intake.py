"""What a constructor takes for a tensor field: packed tensors, ragged rows, lists, arrays, nested tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, PolicyBatch, RolloutBatch, Trainable, settings, unbound
from rollout_contract.errors import (
    ContractError,
    DTypeError,
    LengthError,
    MissingFieldError,
    NonFiniteError,
    ShapeError,
)
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, NAN, policy_batch

ROWS = [[1.0, 2.0], [3.0, 4.0, 5.0]]
PACKED = [1.0, 2.0, 3.0, 4.0, 5.0]


class Wide(RolloutBatch):
    """Fields of every axis."""

    score: Fixed[Float[Tensor, "tokens"]] = unbound()
    top: Fixed[Float[Tensor, "tokens topk"]] = unbound()
    top_ids: Fixed[Int[Tensor, "tokens topk"]] = unbound()
    pairs: Fixed[Float[Tensor, "tokens 2"]] = unbound()
    whole: Fixed[Float[Tensor, "sequence"]] = unbound()
    reward: Fixed[Float[Tensor, "batch"]] = unbound()
    vector: Fixed[Float[Tensor, "batch dim"]] = unbound()
    baseline: Fixed[Float[Tensor, "groups"]] = unbound()
    live: Trainable[Float[Tensor, "tokens"]] = unbound()
    live_top: Trainable[Float[Tensor, "tokens topk"]] = unbound()


def wide(**fields: Any) -> Wide:
    plain = {"response_lengths": LENGTHS, "prompt_lengths": [1, 2], "group_ids": [4, 4], "loss_mask": MASK}
    return Wide(**(plain | fields))


def jagged(rows: list[list[float]]) -> Tensor:
    return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


PER_TOKEN: dict[str, Any] = {
    "packed tensor": torch.tensor(PACKED),
    "packed list": PACKED,
    "packed tuple": tuple(PACKED),
    "packed array": np.array(PACKED, dtype=np.float32),
    "packed numpy numbers": [np.float32(x) for x in PACKED],
    "object array": np.array(PACKED, dtype=object),
    "rows of lists": ROWS,
    "rows of tuples": tuple(map(tuple, ROWS)),
    "rows of tensors": [torch.tensor(row) for row in ROWS],
    "rows of arrays": [np.array(row, dtype=np.float32) for row in ROWS],
    "rows of object arrays": [np.array(row, dtype=object) for row in ROWS],
    "rows of scalar tensors": [[torch.tensor(x) for x in row] for row in ROWS],
    "mixed rows": [ROWS[0], torch.tensor(ROWS[1])],
    "jagged tensor": jagged(ROWS),
    "integers": [[1, 2], [3, 4, 5]],
}


@pytest.mark.parametrize("value", PER_TOKEN.values(), ids=[name.replace(" ", "_") for name in PER_TOKEN])
def test_per_token_input(value: Any) -> None:
    score = wide(score=value).score
    assert score.tolist() == PACKED
    assert score.dtype == torch.float32


def test_a_list_of_arrays_of_a_ragged_object_array() -> None:
    rows = np.empty(2, dtype=object)
    rows[:] = [np.array(row, dtype=np.float32) for row in ROWS]
    assert wide(score=rows).score.tolist() == PACKED


def test_per_sample_and_per_group_input() -> None:
    for value in ([0.5, 1.5], torch.tensor([0.5, 1.5]), np.array([0.5, 1.5], dtype=np.float32)):
        assert wide(reward=value).reward.tolist() == [0.5, 1.5]
    assert wide(reward=[torch.tensor(0.5), torch.tensor(1.5)]).reward.tolist() == [0.5, 1.5]
    assert wide(reward=[torch.tensor(0.5), 1.5]).reward.tolist() == [0.5, 1.5]
    assert wide(vector=[[1.0, 2.0], [3.0, 4.0]]).vector.shape == (2, 2)
    assert wide(vector=[torch.zeros(3), torch.ones(3)]).vector.shape == (2, 3)
    assert wide(baseline=[2.0]).baseline.tolist() == [2.0]
    with pytest.raises(ShapeError, match="entries of one shape"):
        wide(vector=[torch.zeros(3), torch.ones(2)])


def test_whole_sequences() -> None:
    assert wide(whole=[[0.0] * 3, [1.0] * 5]).whole.tolist() == [0.0] * 3 + [1.0] * 5
    with pytest.raises(LengthError) as caught:
        wide(whole=ROWS)
    assert caught.value.expected == "3 prompt and response tokens"
    for value in (ROWS, torch.zeros(8)):
        with pytest.raises(MissingFieldError) as missing:
            wide(whole=value, prompt_lengths=None)
        assert missing.value.subject == "Wide"
        assert missing.value.expected == "prompt lengths, for the whole-sequence field whole"


def test_trailing_dimensions() -> None:
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 0.0]]]
    for value in (rows, [torch.tensor(row) for row in rows], torch.tensor(rows[0] + rows[1])):
        assert wide(pairs=value).pairs.shape == (5, 2)
    as_rows_of_tensors = [[torch.tensor(entry) for entry in row] for row in rows]
    assert wide(pairs=as_rows_of_tensors).pairs.shape == (5, 2)
    with pytest.raises(ShapeError) as caught:
        wide(top=[torch.zeros(2, 3), torch.zeros(3, 4)])
    assert (caught.value.expected, caught.value.row) == ("trailing dimensions [3], as row 0", 1)


def test_rows_without_tokens_take_shape_and_dtype_of_the_others() -> None:
    batch = Wide(
        response_lengths=[0, 2, 0],
        loss_mask=[[], [1, 1], []],
        top=[[], [[1.0, 2.0], [3.0, 4.0]], torch.zeros(0, 7)],
        score=[torch.zeros(0, dtype=torch.long), torch.ones(2, dtype=torch.float64), []],
    )
    assert batch.top.shape == (2, 2)
    assert batch.score.dtype == torch.float64


def test_rows_of_live_tensors_keep_their_graph_where_it_belongs() -> None:
    leaves = [torch.tensor(row, requires_grad=True) for row in ROWS]
    batch = wide(live=leaves, score=leaves)
    assert batch.live.requires_grad
    assert not batch.score.requires_grad
    batch.live.sum().backward()
    assert [leaf.grad.tolist() for leaf in leaves if leaf.grad is not None] == [[1.0] * 2, [1.0] * 3]
    scalars = [[torch.tensor(x, requires_grad=True) for x in row] for row in ROWS]
    batch = wide(live=scalars, score=scalars)
    assert batch.live.requires_grad
    assert not batch.score.requires_grad
    nested = torch.nested.as_nested_tensor(leaves, layout=torch.jagged)
    assert wide(live=nested).live.requires_grad


# -- what is refused ------------------------------------------------------------------------------------------------


WRONG: dict[str, tuple[Any, type[ContractError], str]] = {
    "a number": (1.0, ShapeError, "a float"),
    "a dict": ({"a": 1}, ShapeError, "a dict"),
    "a string": ("ab", ShapeError, "a str"),
    "a set": ({1.0}, ShapeError, "a set"),
    "too few rows": ([[1.0, 2.0]], LengthError, "1 row"),
    "a long row": ([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], LengthError, "3 entries"),
    "nested rows of other lengths": (jagged([[1.0, 2.0, 3.0], [4.0, 5.0]]), LengthError, "3 entries"),
    "a row that is a string": (["ab", "abc"], LengthError, "a str"),
    "a row that is a scalar": ([torch.tensor(1.0), torch.tensor(2.0)], LengthError, "a Tensor"),
    "strings": ([["a", "b"], ["c", "d", "e"]], DTypeError, "too many dimensions 'str'"),
    "an array of strings": (np.array(["a"] * 5), DTypeError, "an array of <U1"),
    "a row of strings": ([np.array(["a", "b"]), np.array(["a"] * 3)], DTypeError, "an array of <U1"),
    "complex numbers": (torch.zeros(5, dtype=torch.complex64), DTypeError, "complex64"),
    "rows of two dtypes": ([torch.zeros(2), torch.zeros(3, dtype=torch.float64)], DTypeError, "torch.float64"),
    "sparse": (torch.ones(5).to_sparse(), ShapeError, "a torch.sparse_coo tensor"),
    "ragged lists in a row": ([[[1.0], [1.0, 2.0]], [1.0, 2.0, 3.0]], DTypeError, "expected sequence of length 1"),
}


@pytest.mark.parametrize(("value", "kind", "found"), WRONG.values(), ids=[name.replace(" ", "_") for name in WRONG])
def test_input_that_is_refused(value: Any, kind: type[ContractError], found: str) -> None:
    with pytest.raises(kind) as caught:
        wide(score=value)
    assert caught.value.field == "score"
    assert caught.value.found.startswith(found)


def test_one_wrong_row_in_many_is_found() -> None:
    rows = [torch.zeros(3) for _ in range(64)]
    rows[41] = torch.zeros(2)
    with pytest.raises(LengthError) as caught:
        Wide(response_lengths=[3] * 64, loss_mask=[[1] * 3] * 64, score=rows)
    assert [violation.row for violation in caught.value.violations] == [41]


def test_every_wrong_row_is_reported() -> None:
    with pytest.raises(LengthError) as caught:
        wide(score=[[1.0], [1.0, 2.0]])
    assert [(v.row, v.found) for v in caught.value.violations] == [(0, "1 entry"), (1, "2 entries")]


def test_integers_are_never_rounded() -> None:
    ids = [[[1, 2], [3, 4]], [[5, 6]] * 3]
    assert wide(top_ids=ids).top_ids.dtype == torch.int64
    with pytest.raises(DTypeError) as caught:
        wide(top_ids=[[[1.5, 2], [3, 4]], [[5, 6]] * 3])
    assert caught.value.field == "top_ids"
    with pytest.raises(DTypeError):
        wide(top_ids=torch.zeros(5, 2))


def test_read_only_arrays_are_copied_without_a_warning() -> None:
    array = np.frombuffer(np.array(PACKED, dtype=np.float32).tobytes(), dtype=np.float32)
    assert not array.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score = wide(score=array).score
    score.mul_(2)
    assert array.tolist() == PACKED


# -- None: the field is absent, or a value is missing ---------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, [], [None, None], (None, None)])
def test_nothing_is_missing(nothing: Any) -> None:
    assert not wide(score=nothing).has("score")
    with pytest.raises(MissingFieldError) as caught:
        policy_batch(old_log_probs=nothing)
    assert (caught.value.field, caught.value.found) == ("old_log_probs", "nothing")


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ([[1.0, None], [None, 2.0, None]], [(0, 1), (1, 0), (1, 2)]),
        ([1.0, None, 3.0, 4.0, None], [(0, 1), (1, 2)]),
        (np.array([1.0, None, 3.0, 4.0, None], dtype=object), [(0, 1), (1, 2)]),
        ([[1.0, 2.0], [None, None, None]], [(1, None)]),
    ],
)
@pytest.mark.parametrize("missing", ["refuse", "mask_out", "neutral"])
def test_a_missing_number_is_refused_with_its_place_whatever_the_policy(
    value: Any, places: list[tuple[int, int | None]], missing: Any
) -> None:
    with settings(missing=missing), pytest.raises(NonFiniteError) as caught:
        policy_batch(advantages=value)
    assert [(v.row, v.position) for v in caught.value.violations] == places
    assert {violation.found for violation in caught.value.violations} == {"None"}


@pytest.mark.parametrize("mask", [[1, None, 1, 0, 1], [[1, None], [1, 0, 1]]])
@pytest.mark.parametrize("missing", ["refuse", "mask_out", "neutral"])
def test_none_in_a_mask_is_no_zero(mask: Any, missing: Any) -> None:
    with settings(missing=missing), pytest.raises(NonFiniteError) as caught:
        policy_batch(loss_mask=mask)
    assert (caught.value.field, caught.value.row, caught.value.position) == ("loss_mask", 0, 1)


def test_none_per_sample_and_in_some_rows() -> None:
    with pytest.raises(NonFiniteError) as caught:
        wide(reward=[1.0, None])
    assert (caught.value.row, caught.value.position) == (1, None)
    with pytest.raises(NonFiniteError) as caught:
        wide(reward=[None, torch.tensor(1.0)])
    assert (caught.value.row, caught.value.found) == (0, "None")
    with pytest.raises(MissingFieldError) as missing:
        policy_batch(advantages=[None, [1.0, 1.0, 1.0]])
    assert missing.value.found == "no value in rows [0]"
    assert missing.value.row == 0


def test_none_in_scores_of_whole_sequences_is_refused() -> None:
    class Prompts(RolloutBatch):
        prompt_log_probs: Fixed[Float[Tensor, "sequence"]]

    with pytest.raises(NonFiniteError) as caught:
        Prompts(response_lengths=[1], prompt_lengths=[2], loss_mask=[1], prompt_log_probs=[[None, -1.0, -1.0]])
    assert (caught.value.row, caught.value.position) == (0, 0)


# -- lengths are host integers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        [2, 3],
        (2, 3),
        torch.tensor([2, 3]),
        np.array([2, 3]),
        [np.int64(2), 3],
        [torch.tensor(2), torch.tensor(3)],
        [2.0, 3.0],
    ],
    ids=str,
)
def test_lengths(lengths: Any) -> None:
    batch = policy_batch(response_lengths=lengths)
    assert batch.response_lengths == (2, 3)
    assert [type(length) for length in batch.response_lengths] == [int, int]


def test_wrong_lengths() -> None:
    with pytest.raises(ContractError) as caught:
        policy_batch(response_lengths=[2, 2.5])
    assert (caught.value.field, caught.value.row, caught.value.found) == ("response_lengths", 1, "2.5")
    with pytest.raises(ContractError, match="a length of 0 or more"):
        policy_batch(response_lengths=[-2, 3])
    with pytest.raises(MissingFieldError, match="response_lengths"):
        PolicyBatch(loss_mask=[1])
    with pytest.raises(LengthError) as length:
        policy_batch(prompt_lengths=[1])
    assert (length.value.expected, length.value.found) == ("one entry for each of the 2 samples", "1 entry")


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ContractError) as caught:
        PolicyBatch(
            response_lengths=LENGTHS,
            loss_mask=[1, 1, 2, 0, 1],
            old_logprobs=torch.zeros(5),
            advantages=torch.zeros(2),
        )
    assert [(v.field, v.rule) for v in caught.value.violations] == [
        ("old_logprobs", "unknown"),
        ("loss_mask", "mask"),
        ("old_log_probs", "missing"),
        ("advantages", "shape"),
    ]
    assert caught.value.hint == "did you mean old_log_probs?"


def test_garbage_on_masked_tokens_is_legal() -> None:
    advantages = list(ADVANTAGES)
    for value in (NAN, float("inf"), -1e30):
        advantages[3] = value
        assert policy_batch(advantages=torch.tensor(advantages)).has("advantages")
