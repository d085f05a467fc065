"""Index maps of ragged batches, on two samples that can be followed by hand, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rollout_contract import Layout
from rollout_contract.errors import (
    ContractError,
    FrozenError,
    LengthError,
    MetadataError,
    MissingFieldError,
    ShapeError,
)

LAYOUT = Layout([2, 0, 3], prompt_lengths=[1, 2, 2], group_ids=[8, 5, 8])
PACKED = torch.tensor([10.0, 11.0, 20.0, 21.0, 22.0])


def test_sizes() -> None:
    assert (LAYOUT.num_samples, LAYOUT.num_tokens, LAYOUT.max_length) == (3, 5, 3)
    assert LAYOUT.offsets == (0, 2, 2, 5)
    assert (LAYOUT.sequence_lengths, LAYOUT.num_sequence_tokens) == ((3, 2, 5), 10)
    assert (LAYOUT.groups, LAYOUT.num_groups) == ((8, 5), 2)
    assert Layout([1, 1]).groups == (0, 1)
    empty = Layout([])
    assert (empty.num_samples, empty.num_tokens, empty.max_length, empty.num_groups) == (0, 0, 0, 0)


def test_index_tensors() -> None:
    assert LAYOUT.sample_ids().tolist() == [0, 0, 2, 2, 2]
    assert LAYOUT.positions().tolist() == [0, 1, 0, 1, 2]
    assert LAYOUT.lengths().tolist() == [2, 0, 3]
    assert LAYOUT.group_index().tolist() == [0, 1, 0]
    assert Layout([1, 1]).group_index().tolist() == [0, 1]
    for make in (LAYOUT.sample_ids, LAYOUT.positions, LAYOUT.lengths, LAYOUT.group_index):
        assert make().dtype == torch.int64
        assert make() is make("cpu")
        assert make("meta").device.type == "meta"


def test_index_tensors_made_under_inference_mode_serve_training() -> None:
    layout = Layout([2, 3], prompt_lengths=[1, 1])
    maps: list[Callable[[Tensor], Tensor]] = [
        layout.sum,
        layout.max,
        layout.min,
        layout.pad,
        layout.sequence_from_response,
        layout.predictions_from_response,
    ]
    with torch.inference_mode():
        for function in maps:
            function(torch.zeros(5))
        layout.expand(torch.zeros(2))
        layout.pack(torch.zeros(2, 3))
    for function in maps:
        function(torch.zeros(5, requires_grad=True)).sum().backward()
    layout.expand(torch.zeros(2, requires_grad=True)).sum().backward()
    layout.pack(torch.zeros(2, 3, requires_grad=True)).sum().backward()


# -- per sample <-> per token ---------------------------------------------------------------------------------------


def test_reductions() -> None:
    assert LAYOUT.sum(PACKED).tolist() == [21.0, 0.0, 63.0]
    mask = torch.tensor([True, False, True, True, False])
    assert LAYOUT.mean(PACKED, mask).tolist() == [10.0, 0.0, 20.5]
    assert LAYOUT.mean(PACKED, torch.zeros(5, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]
    assert LAYOUT.max(PACKED).tolist() == [11.0, 0.0, 22.0]
    assert LAYOUT.max(PACKED, empty=-1.0).tolist() == [11.0, -1.0, 22.0]
    assert LAYOUT.min(PACKED, empty=-1.0).tolist() == [10.0, -1.0, 20.0]


def test_expansion() -> None:
    assert LAYOUT.expand(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1.0, 1.0, 3.0, 3.0, 3.0]
    assert LAYOUT.expand(torch.eye(3)).shape == (5, 3)
    assert LAYOUT.expand_groups(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0, 1.0]


def test_expansion_is_differentiable() -> None:
    leaf = torch.ones(3, requires_grad=True)
    LAYOUT.expand(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 0.0, 3.0]


# -- lists, padded, nested ------------------------------------------------------------------------------------------


def test_split_gives_views_and_cat_joins_them() -> None:
    rows = LAYOUT.split(PACKED)
    assert [row.tolist() for row in rows] == [[10.0, 11.0], [], [20.0, 21.0, 22.0]]
    assert rows[2].data_ptr() == PACKED[2:].data_ptr()
    assert LAYOUT.cat(rows).tolist() == PACKED.tolist()
    assert Layout([]).split(torch.zeros(0)) == []
    assert Layout([]).cat([]).shape == (0,)


@pytest.mark.parametrize(
    ("side", "rows"),
    [
        ("right", [[10.0, 11.0, 9.0, 9.0], [9.0] * 4, [20.0, 21.0, 22.0, 9.0]]),
        ("left", [[9.0, 9.0, 10.0, 11.0], [9.0] * 4, [9.0, 20.0, 21.0, 22.0]]),
    ],
)
def test_padding(side: Any, rows: list[list[float]]) -> None:
    padded = LAYOUT.pad(PACKED, 9.0, side=side, width=4)
    assert padded.tolist() == rows
    assert LAYOUT.pack(padded, side=side).tolist() == PACKED.tolist()
    assert LAYOUT.pad(PACKED).shape == (3, 3)


@pytest.mark.parametrize(
    ("side", "rows"),
    [
        ("right", [[0, 10.0, 11.0, 0, 0], [0] * 5, [0, 0, 20.0, 21.0, 22.0]]),
        ("left", [[0, 0, 0, 10.0, 11.0], [0] * 5, [0, 0, 20.0, 21.0, 22.0]]),
    ],
)
def test_the_responses_of_padded_sequences(side: Any, rows: list[list[float]]) -> None:
    assert LAYOUT.pack(torch.tensor(rows), side=side, frame="sequence").tolist() == PACKED.tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.bfloat16])
def test_padding_keeps_the_dtype_and_trailing_dimensions(dtype: torch.dtype) -> None:
    packed = torch.ones(5, 2, dtype=dtype)
    padded = LAYOUT.pad(packed)
    assert (padded.dtype, padded.shape) == (dtype, (3, 3, 2))
    assert torch.equal(LAYOUT.pack(padded), packed)


def test_packing_live_log_probs_is_one_differentiable_gather() -> None:
    leaf = torch.zeros(3, 4, requires_grad=True)
    LAYOUT.pack(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0] * 4, [1.0, 1.0, 1.0, 0.0]]


def test_jagged_tensors() -> None:
    nested = LAYOUT.to_nested(PACKED)
    assert nested.values().data_ptr() == PACKED.data_ptr()
    assert [row.tolist() for row in nested.unbind()] == [[10.0, 11.0], [], [20.0, 21.0, 22.0]]
    assert LAYOUT.from_nested(nested).data_ptr() == PACKED.data_ptr()


def test_a_jagged_tensor_with_holes() -> None:
    buffer = torch.tensor([10.0, 11.0, -1.0, 20.0, 21.0, 22.0, -1.0])
    nested = torch.nested.nested_tensor_from_jagged(buffer, torch.tensor([0, 3, 7]), lengths=torch.tensor([2, 3]))
    assert Layout([2, 3]).from_nested(nested).tolist() == PACKED.tolist()


def test_a_jagged_tensor_with_other_rows_of_the_same_total() -> None:
    nested = Layout([3, 2]).to_nested(PACKED)
    with pytest.raises(LengthError) as caught:
        Layout([2, 3]).from_nested(nested)
    assert [(v.row, v.expected, v.found) for v in caught.value.violations] == [
        (0, "2 response tokens", "3 entries"),
        (1, "3 response tokens", "2 entries"),
    ]


# -- whole sequences ------------------------------------------------------------------------------------------------

SEQUENCE = torch.arange(10.0)
"""Sample 0: prompt 0, response 1 2. Sample 1: prompt 3 4. Sample 2: prompt 5 6, response 7 8 9."""


def test_responses_of_whole_sequences() -> None:
    assert LAYOUT.response_from_sequence(SEQUENCE).tolist() == [1.0, 2.0, 7.0, 8.0, 9.0]
    assert LAYOUT.response_from_predictions(SEQUENCE).tolist() == [0.0, 1.0, 6.0, 7.0, 8.0]


def test_whole_sequences_of_responses() -> None:
    assert LAYOUT.sequence_from_response(PACKED, -1.0).tolist() == [-1, 10, 11, -1, -1, -1, -1, 20, 21, 22]
    assert LAYOUT.predictions_from_response(PACKED, -1.0).tolist() == [10, 11, -1, -1, -1, -1, 20, 21, 22, -1]


def test_logits_are_cut_with_their_graph() -> None:
    logits = torch.zeros(10, 4, requires_grad=True)
    LAYOUT.response_from_predictions(logits).sum().backward()
    assert logits.grad is not None
    assert logits.grad.sum(1).tolist() == [4, 4, 0, 0, 0, 0, 4, 4, 4, 0]


def test_the_first_response_token_needs_a_token_that_predicts_it() -> None:
    layout = Layout([2, 3, 0], prompt_lengths=[1, 0, 0])
    for use in (
        lambda: layout.response_from_predictions(torch.zeros(6)),
        lambda: layout.predictions_from_response(torch.zeros(5)),
    ):
        with pytest.raises(LengthError) as caught:
            use()
        assert [(v.field, v.row) for v in caught.value.violations] == [("prompt_lengths", 1)]
        assert caught.value.hint == "start every prompt with a beginning-of-sequence token"
    assert layout.response_from_sequence(torch.arange(6.0)).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_whole_sequences_need_prompt_lengths() -> None:
    layout = Layout([2, 3])
    for use in (
        lambda: layout.sequence_lengths,
        lambda: layout.response_from_sequence(torch.zeros(5)),
        lambda: layout.response_from_predictions(torch.zeros(5)),
        lambda: layout.pack(torch.zeros(2, 9), frame="sequence"),
    ):
        with pytest.raises(MissingFieldError) as caught:
            use()
        assert caught.value.field == "prompt_lengths"


# -- select, identity, and no back door -----------------------------------------------------------------------------


def test_select() -> None:
    assert LAYOUT.select([2, 0]) == Layout([3, 2], prompt_lengths=[2, 1], group_ids=[8, 8])
    assert LAYOUT.select([]) == Layout([], prompt_lengths=[], group_ids=[])
    assert Layout([1, 2]).select([1]).group_ids is None


def test_equality_hash_and_copies() -> None:
    twin = Layout([2, 0, 3], prompt_lengths=[1, 2, 2], group_ids=[8, 5, 8])
    assert twin == LAYOUT
    assert hash(twin) == hash(LAYOUT)
    assert Layout([2, 0, 3]) != LAYOUT
    assert LAYOUT != (2, 0, 3)
    for same in (copy.copy(LAYOUT), copy.deepcopy(LAYOUT), pickle.loads(pickle.dumps(LAYOUT))):
        assert same == LAYOUT
    assert repr(LAYOUT) == "Layout(3 samples, 5 tokens, longest 3)"


def test_a_layout_is_frozen_and_final() -> None:
    for name in ("response_lengths", "offsets", "_cache", "new"):
        with pytest.raises(FrozenError):
            setattr(LAYOUT, name, ())
        with pytest.raises(FrozenError):
            delattr(LAYOUT, name)
    assert not hasattr(LAYOUT, "__dict__")


@pytest.mark.parametrize(
    "lengths", [[2, 3], (2, 3), torch.tensor([2, 3]), np.array([2, 3]), [np.int64(2), 3], [torch.tensor(2), 3]], ids=str
)
def test_lengths_are_host_integers(lengths: Any) -> None:
    layout = Layout(lengths, prompt_lengths=lengths, group_ids=lengths)
    for values in (layout.response_lengths, layout.prompt_lengths, layout.group_ids):
        assert values == (2, 3)
        assert [type(value) for value in values] == [int, int]


# -- what is refused ------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[], Any], type[ContractError], str]] = [
    (lambda: Layout([1, -1]), LengthError, "response_lengths [length], row 1"),
    (lambda: Layout([1], prompt_lengths=[-1]), LengthError, "prompt_lengths [length], row 0"),
    (lambda: Layout([1, 2], prompt_lengths=[1]), LengthError, "one entry for each of the 2 samples"),
    (lambda: Layout([1, 2], group_ids=[1, 2, 3]), LengthError, "3 entries"),
    (lambda: Layout([1.5]), LengthError, "response_lengths [length]"),
    (lambda: Layout(torch.tensor([1.0])), LengthError, "response_lengths [length]"),
    (lambda: Layout(["1"]), LengthError, "'str' object cannot be interpreted as an integer"),
    (lambda: LAYOUT.sum(torch.zeros(4)), ShapeError, "5 entries, one for each of the response tokens"),
    (lambda: LAYOUT.sum(torch.zeros(())), ShapeError, "shape []"),
    (lambda: LAYOUT.expand(torch.zeros(5)), ShapeError, "3 entries, one for each of the samples"),
    (lambda: LAYOUT.expand_groups(torch.zeros(3)), ShapeError, "2 entries, one for each of the groups"),
    (lambda: LAYOUT.split(torch.zeros(6)), ShapeError, "packed [shape]"),
    (lambda: LAYOUT.cat([torch.zeros(2)]), LengthError, "1 row"),
    (lambda: LAYOUT.cat([torch.zeros(2), torch.zeros(0), torch.zeros(2)]), LengthError, "rows [length], row 2"),
    (lambda: LAYOUT.cat([torch.zeros(2), torch.zeros(0), torch.zeros(())]), LengthError, "a scalar"),
    (lambda: LAYOUT.pad(PACKED, width=2), LengthError, "at least 3 columns"),
    (lambda: LAYOUT.pad(PACKED, side="middle"), MetadataError, "'left' or 'right'"),
    (lambda: LAYOUT.pack(torch.zeros(3, 2)), LengthError, "width [length], row 2"),
    (lambda: LAYOUT.pack(torch.zeros(2, 3)), ShapeError, "3 entries, one for each of the samples"),
    (lambda: LAYOUT.pack(torch.zeros(5)), ShapeError, "[batch, width, ...]"),
    (lambda: LAYOUT.pack(torch.zeros(3, 9), frame="prompt"), MetadataError, "'response' or 'sequence'"),
    (lambda: LAYOUT.from_nested(Layout([5]).to_nested(PACKED)), LengthError, "1 row"),
    (lambda: LAYOUT.to_nested(torch.zeros(3)), ShapeError, "packed [shape]"),
    (lambda: LAYOUT.response_from_sequence(torch.zeros(5)), ShapeError, "10 entries"),
    (lambda: LAYOUT.response_from_predictions(torch.zeros(9)), ShapeError, "10 entries"),
    (lambda: LAYOUT.sequence_from_response(torch.zeros(10)), ShapeError, "5 entries"),
    (lambda: LAYOUT.predictions_from_response(torch.zeros(10)), ShapeError, "5 entries"),
]


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize(("use", "kind", "text"), REFUSED)
def test_what_is_refused(use: Callable[[], Any], kind: type[ContractError], text: str) -> None:
    with pytest.raises(kind) as caught:
        use()
    assert text in str(caught.value)
