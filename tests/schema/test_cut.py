"""select, split and iteration cut every axis of every field alike; pad_to and to keep everything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, PerSample, PolicyBatch, RolloutBatch
from rollout_contract.errors import (
    LengthError,
    MetadataError,
    RowsError,
)
from rollout_contract.schemas import RolloutScored
from tests.properties.compare import FEW
from tests.schema.batches import OLD, live, policy_batch
from tests.schema.wide import PROMPTS, RESPONSES, TENSORS, Wide, content, expected, wide

# -- select ---------------------------------------------------------------------------------------------------------


ROWS: dict[str, tuple[Any, list[int]]] = {
    "all": ([0, 1, 2, 3], [0, 1, 2, 3]),
    "none": ([], []),
    "some": ([0, 2], [0, 2]),
    "in another order": ([3, 0, 2], [3, 0, 2]),
    "twice": ([2, 2, 0], [2, 2, 0]),
    "negative": ([-1, -4], [3, 0]),
    "tensor": (torch.tensor([3, 1]), [3, 1]),
    "bool tensor": (torch.tensor([True, False, False, True]), [0, 3]),
    "bool list": ([False, True, True, False], [1, 2]),
    "no bool": ([False] * 4, []),
    "bool array": (np.array([True, False, True, False]), [0, 2]),
    "numpy bools": ([np.True_, np.False_, np.True_, np.False_], [0, 2]),
    "array": (np.array([2, 0]), [2, 0]),
    "numpy numbers": ([np.int64(2), np.int64(0)], [2, 0]),
    "scalar tensors": ([torch.tensor(2), torch.tensor(0)], [2, 0]),
    "range": (range(1, 3), [1, 2]),
    "tuple": ((1, 3), [1, 3]),
    "one": (2, [2]),
    "numpy number": (np.int64(2), [2]),
    "scalar tensor": (torch.tensor(2), [2]),
}


@pytest.mark.uninstrumented("numpy's bools are no indices to a type checker")
@pytest.mark.parametrize(("rows", "plain"), ROWS.values(), ids=[name.replace(" ", "_") for name in ROWS])
def test_select_cuts_everything_alike(rows: Any, plain: list[int]) -> None:
    batch = wide()
    for part in (batch.select(rows), batch[rows]):
        assert content(part) == expected(batch, plain)
        assert part.note == "x"
        assert part.is_part is (sorted(plain) != [0, 1, 2, 3])
        part.verify()


def test_slices() -> None:
    batch = wide()
    for index in (slice(1, 3), slice(None, None, -1), slice(2, 2), slice(-2, None)):
        assert content(batch[index]) == expected(batch, list(range(4))[index])


@pytest.mark.parametrize("rows", [[4], [-5], [0, 9], 4, torch.tensor([7])], ids=str)
def test_a_row_that_does_not_exist(rows: Any) -> None:
    with pytest.raises(IndexError, match="an index below 4"):
        wide().select(rows)


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize("rows", [[1.5], [1.0], ["a"], [None], "ab", [[0, 1]], torch.tensor([0.5]), [True, 2]], ids=str)
def test_rows_that_are_no_rows(rows: Any) -> None:
    with pytest.raises(RowsError, match="indices of samples, or a bool mask over them"):
        wide().select(rows)


@pytest.mark.parametrize("mask", [[True], [True] * 5, torch.ones(3, dtype=torch.bool)], ids=str)
def test_a_mask_covers_all_samples(mask: Any) -> None:
    with pytest.raises(LengthError, match="a mask over 4 samples"):
        wide().select(mask)


def test_adjacent_rows_are_views_and_others_are_copies() -> None:
    batch = wide()
    assert batch[1:3].old_log_probs.data_ptr() == batch.old_log_probs[2:].data_ptr()
    assert batch.select([2, 0]).old_log_probs.data_ptr() != batch.old_log_probs.data_ptr()


@given(rows=st.lists(st.integers(-4, 3), max_size=9))
@FEW
def test_select_twice_is_select_once(rows: list[int]) -> None:
    batch = wide()
    assert content(batch.select(rows)) == expected(batch, [row % 4 for row in rows])
    again = batch.select(rows).select(list(range(len(rows)))[::-1])
    assert content(again) == expected(batch, [row % 4 for row in rows][::-1])


def test_without_group_ids_every_sample_is_its_own_group() -> None:
    class Own(RolloutBatch):
        baseline: Fixed[Float[Tensor, "groups"]]

    batch = Own(response_lengths=[1, 1, 1], loss_mask=[1, 1, 1], baseline=[1.0, 2.0, 3.0])
    assert batch.select([2, 0]).baseline.tolist() == [3.0, 1.0]
    assert batch.select([1, 1]).baseline.tolist() == [2.0, 2.0]
    assert Own.concat([batch, batch.select([1])]).baseline.tolist() == [1.0, 2.0, 3.0, 2.0]


# -- split and iteration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "rows"), [(1, [[0], [1], [2], [3]]), (3, [[0, 1, 2], [3]]), (4, [[0, 1, 2, 3]]), (99, [[0, 1, 2, 3]])]
)
def test_split_by_samples(samples: int, rows: list[list[int]]) -> None:
    batch = wide()
    assert [content(part) for part in batch.split(samples=samples)] == [expected(batch, part) for part in rows]


@pytest.mark.parametrize(
    ("max_tokens", "rows"),
    [
        (4, [[0], [1], [2], [3]]),
        (5, [[0, 1], [2], [3]]),
        (7, [[0, 1], [2, 3]]),
        (12, [[0, 1, 2, 3]]),
        (8, [[0, 1, 2], [3]]),
    ],
)
def test_split_by_tokens_of_prompts_and_responses(max_tokens: int, rows: list[list[int]]) -> None:
    batch = wide()
    parts = batch.split(max_tokens=max_tokens)
    assert [content(part) for part in parts] == [expected(batch, part) for part in rows]
    assert all(sum(part.layout.sequence_lengths) <= max_tokens for part in parts)


def test_split_by_tokens_of_responses_where_prompts_are_unknown() -> None:
    assert [part.response_lengths for part in policy_batch().split(max_tokens=3)] == [(2,), (3,)]
    assert [part.response_lengths for part in policy_batch().split(max_tokens=5)] == [(2, 3)]


@given(lengths=st.lists(st.integers(0, 6), max_size=8), max_tokens=st.integers(6, 12), samples=st.integers(1, 4))
@FEW
def test_parts_of_any_step(lengths: list[int], max_tokens: int, samples: int) -> None:
    count = sum(lengths)
    step = RolloutScored(
        response_lengths=lengths, loss_mask=torch.ones(count), rollout_log_probs=-torch.arange(float(count))
    ).weighted("seq-mean-token-mean")
    by_tokens, by_samples = step.split(max_tokens=max_tokens), step.split(samples=samples)
    for parts in (by_tokens, by_samples):
        assert [length for part in parts for length in part.response_lengths] == lengths
        assert [row for part in parts for row in part.row_ids] == list(step.row_ids)
        assert torch.equal(torch.cat([part.rollout_log_probs for part in parts]), step.rollout_log_probs)
        assert torch.equal(torch.cat([part.loss_weights for part in parts]), step.loss_weights)
    assert all(part.layout.num_tokens <= max_tokens for part in by_tokens)
    # No part could have taken the first sample of the next one.
    for part, following in itertools.pairwise(by_tokens):
        assert part.layout.num_tokens + following.response_lengths[0] > max_tokens
    assert all(len(part) == samples for part in by_samples[:-1])


def test_a_sample_that_is_too_long_is_named() -> None:
    with pytest.raises(LengthError) as caught:
        policy_batch().split(max_tokens=1)
    assert [(v.row, v.found) for v in caught.value.violations] == [(0, "2"), (1, "3")]
    assert caught.value.hint == "raise max_tokens, or drop or truncate the sample"


@pytest.mark.parametrize(
    "how", [{}, {"samples": 0}, {"max_tokens": 0}, {"samples": -1}, {"samples": 1, "max_tokens": 9}]
)
def test_split_takes_one_size_of_at_least_one(how: Any) -> None:
    with pytest.raises(MetadataError, match=r"samples=... or max_tokens=..., at least 1"):
        policy_batch().split(**how)


def test_parts_are_views_of_the_step() -> None:
    batch = wide()
    for part, start in zip(batch.split(samples=2), (0, 2), strict=True):
        assert part.old_log_probs.data_ptr() == batch.old_log_probs[start:].data_ptr()


def test_iteration_and_len() -> None:
    batch = wide()
    assert len(batch) == 4
    assert [content(sample) for sample in batch] == [expected(batch, [row]) for row in range(4)]


def test_live_fields_are_cut_with_their_graph() -> None:
    leaf = live()
    parts = policy_batch().bind(log_probs=leaf).split(samples=1)
    (parts[1].log_probs * 2).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0, 0.0, 2.0, 2.0, 2.0]


@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
@FEW
def test_parts_join_to_the_whole(cuts: list[int]) -> None:
    batch = wide().weighted("prompt-mean")
    parts, start = [], 0
    for size in cuts:
        parts.append(batch[start : start + size])
        start += size
    parts.append(batch[start:])
    joined = Wide.concat(parts)
    assert content(joined) == content(batch)
    assert joined.loss_weights.tolist() == batch.loss_weights.tolist()


def test_what_was_cut_off_stays_a_part() -> None:
    first, second = policy_batch().split(samples=1)
    for part in (
        first,
        first[:],
        first.to("cpu"),
        first.pad_to(3),
        first.extend(PolicyBatch),
        first.bind(log_probs=live(torch.tensor(OLD[:2]))),
    ):
        assert part.is_part
    assert PolicyBatch.concat([first, second]).is_part
    assert not PolicyBatch.concat([policy_batch(), policy_batch()]).is_part
    assert not policy_batch().select([1, 0]).is_part


# -- pad_to and to --------------------------------------------------------------------------------------------------


def test_pad_to_gives_every_field_its_rows() -> None:
    batch = wide().weighted("token-mean").pad_to(6)
    assert (len(batch), batch.layout.num_tokens) == (6, 6)
    assert batch.row_ids == (10, 11, 12, 13, -1, -1)
    assert batch.response_lengths == (*RESPONSES, 0, 0)
    assert batch.prompt_lengths == (*PROMPTS, 0, 0)
    assert batch.reward.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]
    assert batch.components.shape == (6, 2)
    assert batch.layout.num_groups == batch.baseline.shape[0] == 4
    assert batch.names[:4] == ("a", "b", "c", "d")
    assert content(batch[:4]) == content(wide())
    assert [part.layout.num_tokens for part in batch.split(samples=2)] == [2, 4, 0]


def test_pad_to_never_shrinks() -> None:
    assert content(wide().pad_to(4)) == content(wide())
    with pytest.raises(RowsError, match="at least 4"):
        wide().pad_to(3)


def test_host_values_of_padding_repeat_the_last_sample() -> None:
    class Named(RolloutBatch):
        names: PerSample[str]

    full = Named(response_lengths=[1, 1], loss_mask=[1, 1], names=["a", "b"])
    assert full.pad_to(4).names == ("a", "b", "b", "b")
    empty = Named(response_lengths=[], loss_mask=[], names=[])
    assert len(empty.pad_to(0)) == 0
    with pytest.raises(MetadataError, match="there is no sample"):
        empty.pad_to(1)
    assert len(RolloutBatch(response_lengths=[], loss_mask=[]).pad_to(2)) == 2


def test_padding_counts_in_no_denominator() -> None:
    for mode in ("token-mean", "seq-mean-token-mean", "prompt-mean", "seq-mean-token-sum"):
        plain, padded = wide().weighted(mode), wide().pad_to(7).weighted(mode)
        assert padded.loss_weights.tolist() == plain.loss_weights.tolist()


def test_to_moves_everything_and_keeps_the_rest() -> None:
    batch = wide().weighted("token-mean")
    assert batch.to("cpu").old_log_probs.data_ptr() == batch.old_log_probs.data_ptr()
    moved = batch.to("meta")
    assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
    assert (moved.device.type, moved.row_ids, moved.note, moved.names) == ("meta", batch.row_ids, "x", batch.names)
    assert not moved.is_part
    bound = policy_batch().bind(log_probs=live())
    assert bound.to("cpu").log_probs.requires_grad
