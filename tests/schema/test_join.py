"""concat, merge and allclose: what fits together, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rollout_contract import Metadata, PolicyBatch, RolloutBatch, settings
from rollout_contract.errors import (
    ContractError,
    DTypeError,
    MetadataError,
    MissingFieldError,
    RowsError,
    SchemaError,
    ShapeError,
)
from rollout_contract.schemas import Scored, TISBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, NAN, OLD, live, policy_batch
from tests.schema.wide import RESPONSES, Wide, wide

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
