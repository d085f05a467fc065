"""What may be added to a batch, when, and what a loss then finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, Metadata, PolicyBatch, RolloutBatch, Trainable, policy_loss, unbound
from rollout_contract.errors import (
    ContractError,
    FrozenError,
    MissingFieldError,
    RowsError,
    SchemaError,
    ShapeError,
    UnknownFieldError,
)
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import KLBatch, LiveBatch, ObservedEntropyBatch, RolloutScored, Scored, TISBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, live, policy_batch

ROLLOUT = [-1.5, -2.0, -0.5, -3.0, -1.0]


# -- extend ---------------------------------------------------------------------------------------------------------


def test_extend_adds_fields_and_keeps_rows_values_and_storage() -> None:
    scored = Scored(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=torch.tensor(OLD), row_ids=[7, 9])
    step = scored.extend(PolicyBatch, advantages=torch.tensor(ADVANTAGES))
    assert type(step) is PolicyBatch
    assert step.row_ids == (7, 9)
    assert step.old_log_probs.data_ptr() == scored.old_log_probs.data_ptr()
    assert not scored.has("advantages")


def test_extend_needs_what_the_wider_schema_requires() -> None:
    scored = Scored(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=torch.tensor(OLD))
    with pytest.raises(MissingFieldError) as caught:
        scored.extend(PolicyBatch)
    assert (caught.value.subject, caught.value.field) == ("PolicyBatch", "advantages")
    with pytest.raises(ShapeError):
        scored.extend(PolicyBatch, advantages=torch.zeros(2))
    with pytest.raises(UnknownFieldError):
        scored.extend(PolicyBatch, advantages=torch.zeros(5), advantage=torch.zeros(5))


def test_extend_loses_no_field() -> None:
    with pytest.raises(SchemaError) as caught:
        policy_batch().extend(TISBatch, rollout_log_probs=torch.tensor(ROLLOUT))
    assert (caught.value.field, caught.value.found) == ("advantages", "no advantages")
    assert caught.value.hint == "let TISBatch inherit from PolicyBatch, or from the schemas that it combines"


def test_a_field_means_the_same_after_extend() -> None:
    class PerToken(RolloutBatch):
        score: Fixed[Float[Tensor, "tokens"]]

    class PerSample(RolloutBatch):
        score: Fixed[Float[Tensor, "batch"]]

    batch = PerToken(response_lengths=[1, 1], loss_mask=[1, 1], score=[[1.0], [2.0]])
    with pytest.raises(SchemaError) as caught:
        batch.extend(PerSample)
    assert (caught.value.expected, caught.value.found) == (
        "a schema that keeps fixed float[tokens]",
        "fixed float[batch]",
    )


@pytest.mark.parametrize("name", ["old_log_probs", "loss_mask", "row_ids", "response_lengths"])
def test_extend_replaces_nothing(name: str) -> None:
    step = policy_batch()
    with pytest.raises(FrozenError) as caught:
        step.extend(PolicyBatch, **{name: getattr(step, name)})
    assert (caught.value.field, caught.value.hint) == (name, "fields are never replaced: build a new batch")


def test_lengths_and_groups_may_come_later() -> None:
    step = policy_batch()
    wider = step.extend(PolicyBatch, prompt_lengths=[2, 4], group_ids=[3, 3])
    assert wider.layout.prompt_lengths == (2, 4)
    assert wider.layout.num_groups == 1
    assert [len(part) for part in wider.split(max_tokens=7)] == [1, 1]
    assert step.layout.prompt_lengths is None
    with pytest.raises(ContractError, match="one entry for each of the 2 samples"):
        step.extend(PolicyBatch, group_ids=[1])


def test_later_groups_fit_the_fields_that_count_them() -> None:
    class Grouped(PolicyBatch):
        baseline: Fixed[Float[Tensor, "groups"]] = unbound()

    step = policy_batch().extend(Grouped, baseline=[1.0, 2.0])
    with pytest.raises(ShapeError, match="baseline"):
        step.extend(Grouped, group_ids=[3, 3])
    assert step.extend(Grouped, group_ids=[3, 4]).layout.groups == (3, 4)


def test_groups_come_before_the_weights_that_depend_on_them() -> None:
    step = policy_batch().weighted("prompt-mean")
    with pytest.raises(RowsError) as caught:
        step.extend(PolicyBatch, group_ids=[3, 3])
    assert caught.value.field == "group_ids"


# -- bind -----------------------------------------------------------------------------------------------------------


class Noted(PolicyBatch, ObservedEntropyBatch):
    """With a fixed field of the forward pass, and metadata."""

    note: Metadata[str] = unbound()


def test_bind_takes_live_and_fixed_outputs_of_the_forward_pass() -> None:
    step = policy_batch().extend(Noted)
    entropy = torch.rand(5, requires_grad=True)
    bound = step.bind(log_probs=live(), observed_entropy=entropy)
    assert bound.log_probs.requires_grad
    assert not bound.observed_entropy.requires_grad
    assert not step.has("log_probs")
    assert step.has("old_log_probs")


def test_the_next_forward_pass_may_be_bound_to_the_same_batch() -> None:
    step = policy_batch().weighted("token-mean")
    first = step.bind(log_probs=live())
    second = first.bind(log_probs=live(torch.tensor(OLD)))
    assert second.log_probs.tolist() == OLD
    assert first.log_probs.tolist() != OLD


@pytest.mark.parametrize(
    "name", ["old_log_probs", "advantages", "loss_mask", "loss_weights", "correction_weights", "row_ids", "nonsense"]
)
def test_bind_takes_nothing_else(name: str) -> None:
    with pytest.raises(UnknownFieldError) as caught:
        policy_batch().bind(**{name: live()})
    assert caught.value.field == name
    assert caught.value.expected == "a field that is bound after the build: log_probs"


def test_a_schema_without_late_fields_binds_nothing() -> None:
    batch = RolloutScored(response_lengths=LENGTHS, loss_mask=MASK, rollout_log_probs=ROLLOUT)
    with pytest.raises(UnknownFieldError, match="this schema has none"):
        batch.bind(log_probs=live())


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize("nothing", [None, [], [None, None]])
def test_bind_of_nothing_is_a_mistake(nothing: Any) -> None:
    for step in (policy_batch(), policy_batch().bind(log_probs=live())):
        with pytest.raises(MissingFieldError) as caught:
            step.bind(log_probs=nothing)
        assert caught.value.field == "log_probs"


def test_what_is_not_bound_says_how_to_get_it() -> None:
    step = policy_batch().extend(Noted)
    for name, repair in {
        "log_probs": "call batch.bind(log_probs=...)",
        "observed_entropy": "call batch.bind(observed_entropy=...)",
        "loss_weights": 'call batch.weighted("token-mean") (or another aggregation) on the whole step, '
        "before any split",
        "correction_weights": "call batch.corrected()",
        "prompt_lengths": "pass prompt_lengths= at the build",
        "note": "pass note= at the build",
    }.items():
        with pytest.raises(MissingFieldError) as caught:
            getattr(step, name)
        assert caught.value.hint == repair
        assert not hasattr(step, name)
        assert not step.has(name)


# -- what a loss requires -------------------------------------------------------------------------------------------


def test_a_loss_needs_weights_and_live_scores() -> None:
    with pytest.raises(MissingFieldError, match="loss_weights"):
        policy_loss(policy_batch().bind(log_probs=live()), PPOClip())
    with pytest.raises(MissingFieldError, match="log_probs"):
        policy_loss(policy_batch().weighted("token-mean"), PPOClip())


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_a_loss_needs_its_schema() -> None:
    kl = KLBatch(response_lengths=LENGTHS, loss_mask=MASK, ref_log_probs=OLD)
    with pytest.raises(MissingFieldError) as caught:
        policy_loss(kl, PPOClip())  # type: ignore[type-var]
    assert caught.value.found == "a KLBatch, which lacks advantages, old_log_probs"
    with pytest.raises(MissingFieldError, match="a dict"):
        policy_loss({"log_probs": live()}, PPOClip())  # type: ignore[type-var]


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
def test_a_field_of_the_same_name_has_the_same_role_and_shape() -> None:
    class Lookalike(LiveBatch):
        old_log_probs: Fixed[Float[Tensor, "tokens"]]
        advantages: Fixed[Float[Tensor, "tokens"]]

    class Live(LiveBatch):
        old_log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()
        advantages: Fixed[Float[Tensor, "batch"]]

    fields = {"response_lengths": LENGTHS, "loss_mask": MASK}
    same = Lookalike(**fields, old_log_probs=OLD, advantages=ADVANTAGES).weighted("sum")
    policy_loss(same.bind(log_probs=live()), PPOClip()).backward()  # type: ignore[type-var]
    other = Live(**fields, advantages=[1.0, 2.0]).weighted("sum").bind(log_probs=live(), old_log_probs=live())
    with pytest.raises(MissingFieldError) as caught:
        policy_loss(other, PPOClip())  # type: ignore[type-var]
    assert caught.value.found == "a Live, which lacks advantages, old_log_probs"


# -- row ids --------------------------------------------------------------------------------------------------------


def test_row_ids_are_unique_in_the_process_and_may_be_given() -> None:
    first, second = policy_batch(), policy_batch()
    assert len({*first.row_ids, *second.row_ids}) == 4
    assert policy_batch(row_ids=[10, 20]).select([1]).row_ids == (20,)
    assert first.weighted("sum").extend(PolicyBatch).row_ids == first.row_ids
    with pytest.raises(ContractError, match="one entry for each of the 2 samples"):
        policy_batch(row_ids=[10])
