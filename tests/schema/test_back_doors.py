"""A batch is what its constructor validated: every other way to a field raises, or validates as well."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from rollout_contract import PolicyBatch, RolloutBatch, policy_loss, settings
from rollout_contract.errors import FrozenError, LiveGraphError, MutatedError, NonFiniteError
from rollout_contract.losses.inputs import read
from rollout_contract.objectives import PPOClip
from rollout_contract.schema.state import State
from tests.schema.batches import ADVANTAGES, NAN, OLD, live, policy_batch, trained


def step() -> PolicyBatch:
    return policy_batch().weighted("token-mean")


FIELDS = ["old_log_probs", "advantages", "loss_mask", "log_probs", "response_lengths", "row_ids"]


@pytest.mark.parametrize("name", [*FIELDS, "layout", "device", "new"])
def test_nothing_is_assigned_or_deleted(name: str) -> None:
    batch = step()
    with pytest.raises(FrozenError) as caught:
        setattr(batch, name, live())
    assert (caught.value.field, caught.value.subject) == (name, "PolicyBatch")
    with pytest.raises(FrozenError):
        delattr(batch, name)
    with pytest.raises(AttributeError):
        setattr(batch, name, live())
    assert batch.old_log_probs.tolist() == OLD


@pytest.mark.parametrize("name", FIELDS)
def test_object_setattr_does_not_reach_a_field(name: str) -> None:
    batch = step()
    with pytest.raises(FrozenError):
        object.__setattr__(batch, name, live())
    with pytest.raises(FrozenError):
        object.__delattr__(batch, name)


def test_the_instance_dictionary_hides_no_field() -> None:
    batch = step()
    batch.__dict__["old_log_probs"] = live()
    vars(batch)["_state"] = None
    assert batch.old_log_probs.tolist() == OLD
    assert not batch.old_log_probs.requires_grad


def test_init_runs_once() -> None:
    batch = step()
    with pytest.raises(FrozenError) as caught:
        batch.__init__(response_lengths=[1], loss_mask=[1], old_log_probs=live(), advantages=[1.0])  # type: ignore[misc]
    assert caught.value.field == "__init__"
    assert batch.old_log_probs.tolist() == OLD


@pytest.mark.parametrize(
    "name",
    ["model_construct", "model_copy", "construct", "copy", "parse_obj", "_replace", "__replace__", "__setstate__"],
)
def test_constructors_of_other_libraries_do_not_exist(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(PolicyBatch, name)
    with pytest.raises(AttributeError):
        getattr(step(), name)


def test_an_object_without_content_is_of_no_use() -> None:
    empty = PolicyBatch.__new__(PolicyBatch)
    for use in (lambda: empty.old_log_probs, lambda: empty.verify(), lambda: repr(empty), lambda: len(empty)):
        with pytest.raises(AttributeError):
            use()


def test_its_values_cannot_be_replaced() -> None:
    batch = step()
    with pytest.raises(TypeError):
        batch._state.values["old_log_probs"] = live()  # type: ignore[index]
    with pytest.raises(AttributeError):
        batch._state.values = {}  # type: ignore[misc]


def test_its_metadata_cannot_be_edited() -> None:
    batch = policy_batch(sampling={"old_log_probs": {"temperature": 0.7}})
    with pytest.raises(TypeError):
        batch.sampling["old_log_probs"] = None  # type: ignore[index]
    with pytest.raises(ValueError, match="frozen"):
        batch.sampling["old_log_probs"].temperature = 1.0
    batch.repairs["nothing"] = 1
    assert batch.repairs == {}


def test_the_class_of_a_batch_stays() -> None:
    with pytest.raises(FrozenError):
        step().__class__ = RolloutBatch  # type: ignore[assignment]


def test_tampering_with_a_class_still_gives_no_gradient() -> None:
    """Python lets anybody patch a class. The loss cuts what it reads once more."""

    class Patched(PolicyBatch):
        """Patched below."""

    source = torch.tensor(OLD, requires_grad=True)
    batch = Patched(response_lengths=[2, 3], loss_mask=[1] * 5, old_log_probs=OLD, advantages=ADVANTAGES)
    Patched.old_log_probs = property(lambda self: source * 1.0)  # type: ignore[assignment]
    assert batch.old_log_probs.requires_grad
    policy_loss(batch.weighted("sum").bind(log_probs=live()), PPOClip()).backward()
    assert source.grad is None


def test_a_state_that_was_forged_still_gives_no_gradient() -> None:
    batch, source = step(), torch.tensor(OLD, requires_grad=True)
    state = batch._state
    values = dict(state.values) | {"old_log_probs": source * 1.0}
    object.__setattr__(
        batch, "_state", State(values, state.layout, state.device, state.versions, state.repairs, state.is_part)
    )
    assert not read(batch, "old_log_probs").requires_grad
    with pytest.raises(LiveGraphError):
        trained(batch)


# -- copies validate ------------------------------------------------------------------------------------------------


def by_pickle(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))


def by_old_pickle(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch, protocol=0))


def by_torch(batch: Any) -> Any:

    buffer = io.BytesIO()
    torch.save(batch, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = [copy.copy, copy.deepcopy, by_pickle, by_old_pickle, by_torch]


@pytest.mark.parametrize("duplicate", COPIES, ids=lambda way: way.__name__)
def test_copies_are_equal_and_trainable(duplicate: Any) -> None:
    batch = policy_batch(
        sampling={"old_log_probs": {"temperature": 0.7}},
        group_ids=[5, 5],
        prompt_lengths=[1, 2],
        loss_mask=torch.tensor([1, 1, 1, 0, 1]),
        advantages=torch.tensor([1.0, 2.0, 3.0, NAN, 5.0]),
    ).weighted("token-mean")
    same = duplicate(batch)
    assert type(same) is PolicyBatch
    assert batch.allclose(same)
    assert (same.layout, same.row_ids, same.sampling, same.aggregation) == (
        batch.layout,
        batch.row_ids,
        batch.sampling,
        batch.aggregation,
    )
    trained(same)
    same.verify()


@pytest.mark.parametrize("duplicate", COPIES[1:], ids=lambda way: way.__name__)
def test_copies_share_nothing(duplicate: Any) -> None:
    batch = step()
    same = duplicate(batch)
    same.old_log_probs.zero_()
    batch.verify()
    assert batch.old_log_probs.tolist() == OLD


@pytest.mark.parametrize("duplicate", COPIES, ids=lambda way: way.__name__)
def test_an_edited_batch_is_not_copied(duplicate: Any) -> None:
    batch = step()
    batch.old_log_probs.zero_()
    with pytest.raises(MutatedError):
        duplicate(batch)


@pytest.mark.parametrize("duplicate", COPIES[1:], ids=lambda way: way.__name__)
def test_a_graph_does_not_travel(duplicate: Any) -> None:
    with pytest.raises(LiveGraphError) as caught:
        duplicate(step().bind(log_probs=live()))
    assert caught.value.field == "log_probs"
    assert caught.value.hint == "copy or send the batch before bind(): a graph cannot travel"


@pytest.mark.parametrize("duplicate", COPIES[1:], ids=lambda way: way.__name__)
def test_a_copy_is_checked_like_a_build(duplicate: Any) -> None:

    with settings(level="off"):
        unchecked = policy_batch(advantages=torch.tensor([NAN, *ADVANTAGES[1:]]))
    with pytest.raises(NonFiniteError):
        duplicate(unchecked)


def test_a_forged_pickle_is_checked() -> None:
    rebuild, (schema, values, repairs, is_part) = step().__reduce__()
    assert rebuild(schema, values, repairs, is_part).old_log_probs.tolist() == OLD
    source = torch.tensor(OLD, requires_grad=True)
    forged = rebuild(schema, values | {"old_log_probs": source * 1.0}, repairs, is_part)
    assert not forged.old_log_probs.requires_grad
    with pytest.raises(ValueError, match="advantages"):
        rebuild(schema, values | {"advantages": torch.zeros(2)}, repairs, is_part)
    with pytest.raises(TypeError):
        rebuild(schema, values | {"old_log_probs": "text"}, repairs, is_part, None)


def test_a_part_is_sent_without_the_step_that_it_was_cut_from() -> None:
    count = 50_000
    big = PolicyBatch(
        response_lengths=[count, 1],
        loss_mask=torch.ones(count + 1),
        old_log_probs=-torch.ones(count + 1),
        advantages=torch.ones(count + 1),
    )
    part = big.split(samples=1)[1]
    assert part.old_log_probs.untyped_storage().nbytes() > count
    assert len(pickle.dumps(part)) < 10_000
    same = by_pickle(part)
    assert same.is_part
    assert same.old_log_probs.untyped_storage().nbytes() == 4


def test_repairs_travel() -> None:

    with settings(missing="mask_out"):
        batch = policy_batch(old_log_probs=torch.tensor([NAN, *OLD[1:]]))
    assert by_pickle(batch).repairs == batch.repairs == {"old_log_probs: missing, masked out": 1}


def test_deepcopy_of_a_structure_that_holds_batches() -> None:
    batch = step()
    held = copy.deepcopy({"steps": [batch, batch]})
    assert all(batch.allclose(other) for other in held["steps"])


def test_batches_compare_by_identity_and_have_allclose() -> None:
    batch = step()
    same = by_pickle(batch)
    assert batch == batch
    assert batch != same
    assert len({batch, same}) == 2
    assert batch.allclose(same)
