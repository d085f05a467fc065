"""split, select, concat, merge, pad_to and to cut every axis of every field alike."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, Metadata, PerSample, PolicyBatch, RolloutBatch, settings
from rollout_contract.errors import (
    ContractError,
    DTypeError,
    LengthError,
    MetadataError,
    MissingFieldError,
    RowsError,
    SchemaError,
    ShapeError,
)
from rollout_contract.schemas import RolloutScored, Scored, TISBatch
from tests.properties.compare import FEW
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, NAN, OLD, live, policy_batch

NUM = 4
RESPONSES = [2, 0, 3, 1]
PROMPTS = [1, 2, 0, 3]
GROUPS = [9, 4, 9, 7]


class Wide(PolicyBatch):
    """A field on every axis, metadata, and host values for each sample."""

    top: Fixed[Float[Tensor, "tokens topk"]]
    ids: Fixed[Int[Tensor, "sequence"]]
    reward: Fixed[Float[Tensor, "batch"]]
    components: Fixed[Float[Tensor, "batch parts"]]
    baseline: Fixed[Float[Tensor, "groups"]]
    names: PerSample[str]
    note: Metadata[str]


def wide(row_ids: list[int] | None = None, **changes: Any) -> Wide:
    tokens, whole = sum(RESPONSES), sum(RESPONSES) + sum(PROMPTS)
    plain = {
        "response_lengths": RESPONSES,
        "prompt_lengths": PROMPTS,
        "group_ids": GROUPS,
        "row_ids": row_ids or [10, 11, 12, 13],
        "loss_mask": torch.tensor([1, 0, 1, 1, 0, 1]),
        "old_log_probs": -torch.arange(1.0, tokens + 1),
        "advantages": torch.arange(tokens).double(),
        "top": torch.arange(2.0 * tokens).reshape(tokens, 2),
        "ids": torch.arange(whole) + 100,
        "reward": torch.arange(4.0),
        "components": torch.arange(8.0).reshape(4, 2),
        "baseline": torch.tensor([90.0, 40.0, 70.0]),
        "names": ["a", "b", "c", "d"],
        "note": "x",
    }
    return Wide(**(plain | changes))


TENSORS = ["loss_mask", "old_log_probs", "advantages", "top", "ids", "reward", "components", "baseline"]


def expected(batch: Wide, rows: list[int]) -> dict[str, Any]:
    """What the samples of these rows hold, by plain slicing."""
    layout = batch.layout
    tokens = [slice(sum(RESPONSES[:row]), sum(RESPONSES[: row + 1])) for row in rows]
    total = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    whole = [slice(sum(total[:row]), sum(total[: row + 1])) for row in rows]
    groups = list(dict.fromkeys(GROUPS[row] for row in rows))
    found: dict[str, Any] = {}
    for name in TENSORS:
        values = getattr(batch, name)
        axis = type(batch).__plan__[name].axis
        parts = {
            "tokens": lambda values=values: [values[span] for span in tokens],
            "sequence": lambda values=values: [values[span] for span in whole],
            "batch": lambda values=values: [values[row : row + 1] for row in rows],
            "groups": lambda values=values: [values[i : i + 1] for i in map(layout.groups.index, groups)],
        }[axis]()
        found[name] = torch.cat([values[:0], *parts]).tolist()
    found["names"] = tuple(batch.names[row] for row in rows)
    found["row_ids"] = tuple(batch.row_ids[row] for row in rows)
    found["group_ids"] = tuple(GROUPS[row] for row in rows)
    found["response_lengths"] = tuple(RESPONSES[row] for row in rows)
    found["prompt_lengths"] = tuple(PROMPTS[row] for row in rows)
    return found


def content(batch: Wide) -> dict[str, Any]:
    host = ("names", "row_ids", "group_ids", "response_lengths", "prompt_lengths")
    return {name: getattr(batch, name).tolist() for name in TENSORS} | {name: getattr(batch, name) for name in host}


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


# -- concat ---------------------------------------------------------------------------------------------------------


def test_concat_keeps_order_and_ids() -> None:
    first, second = wide(), wide(row_ids=[20, 21, 22, 23])
    joined = Wide.concat([second.select([1]), first])
    assert joined.row_ids == (21, 10, 11, 12, 13)
    assert joined.names == ("b", "a", "b", "c", "d")
    assert joined.layout.groups == (4, 9, 7)
    assert joined.baseline.tolist() == [40.0, 90.0, 70.0]
    assert joined.response_lengths == (0, *RESPONSES)


def test_a_group_has_one_value_in_all_batches() -> None:
    with pytest.raises(MetadataError) as caught:
        Wide.concat([wide(), wide(baseline=[90.0, 41.0, 70.0])])
    assert (caught.value.field, caught.value.found) == ("baseline", "different values for group 4")


def test_concat_of_nothing_and_of_one() -> None:
    with pytest.raises(MissingFieldError, match="at least one batch"):
        Wide.concat([])
    batch = wide()
    assert Wide.concat([batch]).allclose(batch)
    assert Wide.concat(iter([batch])).allclose(batch)  # type: ignore[arg-type]


def test_a_field_is_in_all_batches_or_in_none() -> None:
    with_groups = policy_batch(group_ids=[1, 1])
    with pytest.raises(MissingFieldError) as caught:
        PolicyBatch.concat([policy_batch(), with_groups, policy_batch().weighted("sum")])
    assert {v.field: v.found for v in caught.value.violations} == {
        "group_ids": "none in batches [0, 2]",
        "loss_weights": "none in batches [0, 1]",
        "aggregation": "none in batches [0, 1]",
    }
    bound = policy_batch().bind(log_probs=live())
    with pytest.raises(MissingFieldError, match=r"none in batches \[1\]"):
        PolicyBatch.concat([bound, policy_batch()])


@pytest.mark.parametrize("values", [("x", "y"), (1, 2), (NAN, 1.0), ({"a": NAN}, {"a": 1.0}), ([1], [1, 2])], ids=str)
def test_metadata_that_differs(values: tuple[Any, Any]) -> None:
    class Noted(RolloutBatch):
        note: Metadata[Any]

    made = [Noted(response_lengths=[1], loss_mask=[1], note=value) for value in values]
    with pytest.raises(MetadataError) as caught:
        Noted.concat(made)
    assert caught.value.found == f"{values[0]!r} and {values[1]!r}"


@pytest.mark.parametrize("make", [lambda: float("nan"), lambda: {"a": [float("nan")]}, lambda: np.array([1.0, NAN])])
def test_nan_in_metadata_equals_itself(make: Any) -> None:
    class Noted(RolloutBatch):
        note: Metadata[Any]

    made = [Noted(response_lengths=[1], loss_mask=[1], note=make()) for _ in range(2)]
    assert len(Noted.concat(made)) == 2


def test_sampling_that_differs() -> None:
    made = [policy_batch(sampling={"old_log_probs": {"temperature": heat}}) for heat in (0.6, 1.0)]
    with pytest.raises(MetadataError, match="equal metadata in all batches"):
        PolicyBatch.concat(made)


def test_concat_drops_no_field() -> None:
    step = policy_batch()
    with pytest.raises(SchemaError) as caught:
        Scored.concat([step])
    assert caught.value.found == "no advantages"
    with pytest.raises(SchemaError) as wrong:
        PolicyBatch.concat([step, Scored(response_lengths=[1], loss_mask=[1], old_log_probs=[-1.0])])  # type: ignore[list-item]
    assert (wrong.value.field, wrong.value.expected, wrong.value.found) == ("batch 1", "a PolicyBatch", "a Scored")


def test_tensors_that_do_not_fit() -> None:
    with pytest.raises(ShapeError) as caught:
        Wide.concat([wide(), wide(top=torch.zeros(6, 3))])
    assert (caught.value.field, caught.value.expected, caught.value.found) == (
        "top",
        "trailing dimensions [2], as in batch 0",
        "[3] in batch 1",
    )
    with pytest.raises(DTypeError, match="advantages"):
        Wide.concat([wide(), wide(advantages=torch.zeros(6))])


def test_whole_steps_are_weighted_after_they_were_joined() -> None:
    steps = [policy_batch().weighted("token-mean") for _ in range(2)]
    with pytest.raises(RowsError) as caught:
        PolicyBatch.concat(steps)
    assert caught.value.hint == "call concat() first, then weighted()"
    joined = PolicyBatch.concat([policy_batch(), policy_batch()]).weighted("token-mean")
    assert float(joined.loss_weights.sum()) == pytest.approx(1.0)
    parts = steps[0].split(samples=1)
    assert PolicyBatch.concat(parts).loss_weights.tolist() == steps[0].loss_weights.tolist()
    assert PolicyBatch.concat([steps[0], steps[0].select([])]).allclose(steps[0])


def test_repairs_add_up() -> None:

    with settings(missing="mask_out"):
        made = [policy_batch(old_log_probs=torch.tensor([NAN, *OLD[1:]])) for _ in range(2)]
    assert PolicyBatch.concat(made).repairs == {"old_log_probs: missing, masked out": 2}


# -- merge ----------------------------------------------------------------------------------------------------------


class Both(PolicyBatch, TISBatch):
    """Scores of sampler and trainer, and advantages."""


def tis_batch(**changes: Any) -> TISBatch:
    plain = {"response_lengths": LENGTHS, "loss_mask": MASK, "row_ids": [1, 2], "old_log_probs": torch.tensor(OLD)}
    return TISBatch(**(plain | {"rollout_log_probs": torch.tensor(OLD)} | changes))


def test_merge_takes_the_fields_of_both() -> None:
    step = policy_batch(row_ids=[1, 2])
    merged = step.merge(tis_batch(), Both)
    assert merged.rollout_log_probs.tolist() == OLD
    assert merged.advantages.data_ptr() == step.advantages.data_ptr()
    assert merged.row_ids == (1, 2)


@pytest.mark.parametrize("row_ids", [[2, 1], [1, 3]])
def test_other_rows_and_another_order_are_refused(row_ids: list[int]) -> None:
    with pytest.raises(RowsError) as caught:
        policy_batch(row_ids=[1, 2]).merge(tis_batch(row_ids=row_ids), Both)
    assert (caught.value.field, caught.value.found) == ("row_ids", f"rows {row_ids[0]}, {row_ids[1]}")
    with pytest.raises(RowsError):
        policy_batch().merge(tis_batch(row_ids=None), Both)


def test_shared_fields_are_equal() -> None:
    garbage = torch.tensor([*OLD[:3], NAN, OLD[4]])
    step = policy_batch(row_ids=[1, 2], old_log_probs=garbage)
    assert step.merge(tis_batch(old_log_probs=garbage.clone()), Both).has("rollout_log_probs")
    assert step.merge(tis_batch(old_log_probs=garbage.double()), Both).old_log_probs.dtype == torch.float32
    for changes in ({"old_log_probs": torch.tensor(OLD) - 1}, {"loss_mask": [0, 1, 1, 0, 1]}):
        with pytest.raises(MetadataError) as caught:
            step.merge(tis_batch(**({"old_log_probs": garbage} | changes)), Both)
        assert caught.value.field == next(iter(changes))


def test_merge_adds_sampling_up() -> None:
    mine = policy_batch(row_ids=[1, 2], sampling={"old_log_probs": {"temperature": 0.5}})
    theirs = tis_batch(sampling={"rollout_log_probs": {"temperature": 0.5}})
    assert set(mine.merge(theirs, Both).sampling) == {"old_log_probs", "rollout_log_probs"}
    assert set(policy_batch(row_ids=[1, 2]).merge(theirs, Both).sampling) == {"rollout_log_probs"}
    same = tis_batch(sampling={"old_log_probs": {"temperature": 0.5}})
    assert mine.merge(same, Both).sampling == mine.sampling
    with pytest.raises(ContractError):
        mine.merge(tis_batch(sampling={"old_log_probs": {"temperature": 1.0}}), Both)
    with pytest.raises(MetadataError):
        mine.merge(tis_batch(sampling={"rollout_log_probs": {"temperature": 1.0}}), Both)


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


# -- allclose -------------------------------------------------------------------------------------------------------


def test_allclose() -> None:
    batch = wide()
    assert batch.allclose(wide())
    assert batch.allclose(wide(advantages=torch.arange(6.0)))
    assert batch.allclose(wide(reward=torch.arange(4.0) + 1e-9))
    for changes in ({"reward": torch.arange(4.0) + 1e-2}, {"note": "y"}, {"row_ids": [1, 2, 3, 4]}):
        assert not batch.allclose(wide(**changes))
    assert batch.allclose(wide(reward=torch.arange(4.0) + 1e-2), atol=0.1)
    assert not batch.allclose(batch.weighted("sum"))
    assert not batch.allclose(batch[:3])
    assert not batch.allclose(policy_batch())  # type: ignore[arg-type]


def test_advantages_are_those_of_the_sample() -> None:
    """A permutation of one field alone cannot happen: there is no way to select a single field."""
    batch = policy_batch(advantages=ADVANTAGES)
    assert batch.select([1, 0]).advantages.tolist() == [*ADVANTAGES[2:], *ADVANTAGES[:2]]
