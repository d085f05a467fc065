"""One line after scoring: what is put back into the trainer's dict, and what is not touched."""

from __future__ import annotations

from collections import UserDict
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, KLBatch, PolicyBatch, TISBatch, settings
from rollout_contract.boundary import MILES, PLAIN, VERL, Key, PersistedBatch, guard
from rollout_contract.errors import (
    ContractError,
    DTypeError,
    LengthError,
    LiveGraphError,
    MaskError,
    MissingFieldError,
    NonFiniteError,
    UnknownFieldError,
)
from rollout_contract.roles import Upcast
from tests.boundary.dicts import LENGTHS, NAN, SCORES, live, miles_dict, rows


class Strict(PolicyBatch, KLBatch):
    """A step that needs a reference."""


def plain_dict(**changes: Any) -> dict[str, Any]:
    """Under the library's own names, padded, with width 3."""
    plain = {
        "loss_mask": torch.tensor([[1, 1, 0], [1, 0, 1]]),
        "old_log_probs": torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -3.0, -1.5]]),
        "advantages": torch.tensor([[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]]),
    }
    return {key: value for key, value in (plain | changes).items() if value is not ...}


# -- what was right stays ------------------------------------------------------------------------------------------


def test_where_nothing_was_wrong_every_object_stays() -> None:
    data = miles_dict()
    before = dict(data)
    inner = {key: list(map(id, data[key])) for key in SCORES}
    guard(data, PersistedBatch, MILES)
    assert all(data[key] is before[key] for key in before)
    assert list(data) == list(before)
    assert inner == {key: list(map(id, data[key])) for key in SCORES}


def test_a_cut_tensor_keeps_its_memory_and_its_bits() -> None:
    data = miles_dict(log_probs=live(rows()))
    before = data["log_probs"]
    guard(data, PersistedBatch, MILES)
    for old, new in zip(before, data["log_probs"], strict=True):
        assert new.data_ptr() == old.data_ptr()
        assert torch.equal(new, old.detach())
        assert not new.requires_grad
        assert new.grad_fn is None


def test_only_the_live_rows_of_a_list_are_replaced() -> None:
    scores = rows()
    mixed = [scores[0], *live(scores[1:])]
    data = miles_dict(values=mixed)
    guard(data, PersistedBatch, MILES)
    assert data["values"][0] is scores[0]
    assert not data["values"][1].requires_grad
    assert mixed[1].requires_grad, "the caller's own list is not edited"


@pytest.mark.parametrize("container", [list, tuple])
def test_containers_keep_their_type(container: type) -> None:
    data = miles_dict(values=container(live(rows())), returns=container([[-1.0, -2.0], [-3.0, -4.0, -5.0]]))
    returns = data["returns"]
    batch = guard(data, PersistedBatch, MILES)
    assert type(data["values"]) is container
    assert data["returns"] is returns, "lists of numbers carry no graph"
    assert batch.returns.tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]


def test_a_padded_tensor_stays_one_and_the_batch_shares_its_memory() -> None:
    old = plain_dict()["old_log_probs"]
    data = plain_dict(old_log_probs=(old.requires_grad_() * 1.0))
    before = data["old_log_probs"]
    batch = guard(data, PolicyBatch)
    assert data["old_log_probs"].shape == (2, 3)
    assert data["old_log_probs"].data_ptr() == before.data_ptr() == batch.old_log_probs.data_ptr()
    assert not data["old_log_probs"].requires_grad


def test_keys_that_the_schema_does_not_know_are_left_alone_even_if_live() -> None:
    extra = torch.ones(2, requires_grad=True)
    data = miles_dict(my_scores=[extra], entropy=live(rows()), ref_log_probs=live(rows()))
    entropy = data["entropy"]
    guard(data, TISBatch, MILES)
    assert data["my_scores"][0] is extra
    assert data["entropy"] is entropy
    assert data["ref_log_probs"][0].requires_grad, "TISBatch has no reference"


def test_arrays_and_nested_tensors() -> None:
    nested = torch.nested.nested_tensor(rows(), layout=torch.jagged)
    array = np.array([[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]], dtype=np.float32)
    data = plain_dict(advantages=array)
    batch = guard(data, PolicyBatch)
    assert data["advantages"] is array
    assert batch.advantages.tolist() == array.flatten().tolist()
    data = miles_dict(log_probs=nested.detach().requires_grad_())
    batch = guard(data, PersistedBatch, MILES)
    assert data["log_probs"].is_nested
    assert not data["log_probs"].requires_grad
    assert torch.equal(batch.old_log_probs, torch.cat(rows()))


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_anything_that_can_be_used_like_a_dict() -> None:
    class Experience:
        def __init__(self) -> None:
            vars(self).update(plain_dict())
            self.old_log_probs = self.old_log_probs.requires_grad_() * 1.0

    experience = Experience()
    guard(vars(experience), PolicyBatch)
    assert not experience.old_log_probs.requires_grad
    data = UserDict(plain_dict())
    guard(data, PolicyBatch)
    with pytest.raises(TypeError, match="does not support item assignment"):
        guard(MappingProxyType(vars(Experience())), PolicyBatch)  # type: ignore[arg-type]


# -- what is missing -----------------------------------------------------------------------------------------------


def test_optional_scores_that_are_missing_stay_missing() -> None:
    data = miles_dict(
        **(dict.fromkeys(SCORES, ...) | {"log_probs": rows(), "ref_log_probs": None, "values": [None, None]})
    )
    batch = guard(data, PersistedBatch, MILES)
    assert [name for name in type(batch).__plan__ if batch.has(name) and name.endswith("log_probs")] == [
        "old_log_probs"
    ]
    assert data["ref_log_probs"] is None
    assert data["values"] == [None, None]
    assert "returns" not in data
    with pytest.raises(MissingFieldError, match="ref_log_probs"):
        _ = batch.ref_log_probs


@pytest.mark.parametrize("absent", [..., None, [], [None, None]])
def test_a_required_field_that_is_missing_is_an_error_with_its_key(absent: Any) -> None:
    with pytest.raises(MissingFieldError) as caught:
        guard(miles_dict(log_probs=absent), Strict, MILES)
    assert caught.value.field == "old_log_probs"
    assert caught.value.found == "nothing (key log_probs of miles)"


def test_without_a_mask_the_mask_is_what_is_missing() -> None:
    with pytest.raises(MissingFieldError, match="loss_mask"):
        guard(plain_dict(loss_mask=None), PolicyBatch)
    with pytest.raises(MissingFieldError, match=r"key loss_masks of miles"):
        guard(miles_dict(loss_masks=[]), PersistedBatch, MILES)


def test_a_field_that_some_rows_lack_is_an_error() -> None:
    with pytest.raises(MissingFieldError) as caught:
        guard(miles_dict(rollout_log_probs=[rows()[0], None]), PersistedBatch, MILES)
    assert (caught.value.field, caught.value.row) == ("rollout_log_probs", 1)


# -- what is wrong -------------------------------------------------------------------------------------------------


def test_a_dict_with_a_fault_is_left_as_it_was() -> None:
    data = miles_dict(log_probs=live(rows()), ref_log_probs=[rows()[0], rows()[1][:2]])
    before = dict(data)
    with pytest.raises(LengthError, match=r"ref_log_probs \[length\], row 1"):
        guard(data, PersistedBatch, MILES)
    assert all(data[key] is before[key] for key in before)


def test_live_scores_can_be_refused_and_are_then_left_alone() -> None:
    data = miles_dict(log_probs=live(rows()), opd_reverse_kl=live(rows()))
    before = dict(data)
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        guard(data, PersistedBatch, MILES)
    assert {violation.field for violation in caught.value.violations} == {"old_log_probs", "reverse_kl"}
    assert "(key log_probs of miles)" in str(caught.value)
    assert all(data[key] is before[key] for key in before)


def test_a_warning_is_given_once() -> None:
    with settings(live_inputs="warn"), pytest.warns(UserWarning, match="old_log_probs") as caught:
        guard(plain_dict(old_log_probs=plain_dict()["old_log_probs"].requires_grad_() * 1.0), PolicyBatch)
    assert len(caught) == 1


def test_a_padded_field_of_another_width() -> None:
    with pytest.raises(ContractError) as caught:
        guard(plain_dict(advantages=torch.ones(2, 2)), PolicyBatch)
    assert caught.value.field == "advantages"
    assert caught.value.expected == "[2 rows, 3 columns]"
    assert caught.value.found == "f32[2, 2]"


def test_names_that_the_schema_does_not_have() -> None:
    with pytest.raises(UnknownFieldError, match="old_log_prob"):
        guard(plain_dict(), PolicyBatch, PLAIN, old_log_prob=torch.ones(2, 3))


# -- what real trainers pass ---------------------------------------------------------------------------------------


def test_float_masks_empty_prompts_and_float_lists() -> None:
    data = miles_dict(log_probs=[[-1.0, -2.0], [-0.5, -3.0, -1.5]])
    batch = guard(data, PersistedBatch, MILES)
    assert batch.loss_mask.tolist() == [True, True, True, False, True]
    assert batch.prompt_lengths == (0, 4)
    assert batch.old_log_probs.tolist() == [-1.0, -2.0, -0.5, -3.0, -1.5]
    assert data["loss_masks"][0].dtype == torch.float32


def test_a_mask_that_is_no_mask() -> None:
    with pytest.raises(MaskError, match=r"key loss_masks of miles"):
        guard(miles_dict(loss_masks=[torch.ones(2), torch.tensor([1.0, 0.5, 1.0])]), PersistedBatch, MILES)


def test_what_lies_at_masked_positions_is_neither_judged_nor_touched() -> None:
    wild = [rows()[0], torch.tensor([-1.0, NAN, -2.0])]
    data = miles_dict(log_probs=wild, returns=[rows()[0], torch.tensor([1.0, float("inf"), 1.0])])
    guard(data, PersistedBatch, MILES)
    assert data["log_probs"] is wild
    assert torch.isnan(data["log_probs"][1][1])
    with pytest.raises(NonFiniteError, match="old_log_probs"):
        guard(miles_dict(log_probs=[rows()[0], torch.tensor([NAN, 0.0, -2.0])]), PersistedBatch, MILES)


def test_half_precision_is_refused_unless_it_is_asked_for() -> None:
    half = [row.bfloat16() for row in rows()]
    with pytest.raises(DTypeError, match="rollout_log_probs"):
        guard(miles_dict(rollout_log_probs=half), PersistedBatch, MILES)
    data = miles_dict(rollout_log_probs=half)
    with settings(half_precision="upcast"):
        batch = guard(data, PersistedBatch, MILES)
    assert batch.rollout_log_probs.dtype == torch.float32
    assert [row.dtype for row in data["rollout_log_probs"]] == [torch.float32] * 2
    assert torch.equal(data["rollout_log_probs"][0], half[0].float())


def test_half_precision_of_one_field() -> None:
    class HalfRollouts(TISBatch):
        rollout_log_probs: Fixed[Annotated[Float[Tensor, "tokens"], Upcast]]

    data = miles_dict(rollout_log_probs=[row.bfloat16() for row in rows()])
    assert guard(data, HalfRollouts, MILES).rollout_log_probs.dtype == torch.float32
    assert data["rollout_log_probs"][0].dtype == torch.float32
    with pytest.raises(DTypeError, match="old_log_probs"):
        guard(miles_dict(log_probs=[row.bfloat16() for row in rows()]), HalfRollouts, MILES)


def test_a_teacher_on_another_device_keeps_it() -> None:
    far = [row.to("meta") for row in rows()]
    data = miles_dict(teacher_log_probs=far)
    batch = guard(data, PersistedBatch, MILES)
    assert data["teacher_log_probs"] is far
    assert batch.teacher_log_probs.device.type == "meta"
    assert batch.device.type == "cpu"


def test_inference_tensors_and_expanded_views_are_copied() -> None:
    with torch.inference_mode():
        made = [row.clone() for row in rows()]
    expanded = torch.ones(2, 1).expand(2, 3)
    data = miles_dict(log_probs=made)
    guard(data, PersistedBatch, MILES)
    leaf = torch.zeros(2, requires_grad=True)
    (leaf.exp() * data["log_probs"][0]).sum().backward()
    data = plain_dict(advantages=expanded)
    guard(data, PolicyBatch)
    data["advantages"][0, 0] = 5.0
    assert data["advantages"].tolist() == [[5.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


def test_under_inference_mode_the_dict_gets_ordinary_tensors() -> None:
    data = miles_dict(values=live(rows()))
    with torch.inference_mode():
        data["log_probs"] = [row * 2 for row in rows()]
        guard(data, PersistedBatch, MILES)
    assert not any(row.is_inference() for key in ("values", "log_probs") for row in data[key])


# -- missing values that were resolved -----------------------------------------------------------------------------


def test_masked_out_values_are_put_back_with_the_mask() -> None:
    scores = [[-1.0, None], [-0.1, NAN, -0.3]]
    data = miles_dict(rollout_log_probs=scores)
    with settings(missing="mask_out"):
        batch = guard(data, PersistedBatch, MILES)
    assert batch.loss_mask.tolist() == [True, False, True, False, True]
    assert [row.tolist() for row in data["loss_masks"]] == [[1.0, 0.0], [1.0, 0.0, 1.0]]
    assert data["loss_masks"][1].dtype == torch.float32
    assert data["rollout_log_probs"] == [[-1.0, 0.0], [-0.1, 0.0, -0.3]]
    assert scores[0][1] is None, "the caller's own list is not edited"


def test_neutral_values_are_put_back() -> None:
    old = [torch.tensor([-1.0, -2.0]), torch.tensor([-0.5, -3.0, -1.5])]
    data = miles_dict(log_probs=old, rollout_log_probs=[torch.tensor([NAN, -2.25]), rows()[1]])
    untouched = data["rollout_log_probs"][1]
    with settings(missing="neutral"):
        guard(data, PersistedBatch, MILES)
    assert data["rollout_log_probs"][0].tolist() == [-1.0, -2.25]
    assert data["rollout_log_probs"][1] is untouched
    assert data["log_probs"] is old


def test_masked_out_values_of_padded_tensors() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    data = {"response_mask": mask, "old_log_probs": torch.tensor([[-1.0, NAN, NAN], [-0.5, -3.0, -1.5]])}
    data["advantages"] = torch.ones(2, 3)
    with settings(missing="mask_out"):
        guard(data, PolicyBatch, VERL)
    assert data["response_mask"].tolist() == [[1, 0, 0], [1, 0, 1]]
    assert data["response_mask"].dtype == torch.long
    assert data["old_log_probs"].tolist()[0][1] == 0.0
    assert mask.tolist() == [[1, 1, 0], [1, 0, 1]], "the caller's tensor is not edited"


def test_masked_out_values_of_nested_tensors() -> None:
    def jagged(tensors: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    data = miles_dict(rollout_log_probs=jagged([torch.tensor([-1.0, NAN]), rows()[1]]))
    with settings(missing="mask_out"):
        guard(data, PersistedBatch, MILES)
    assert data["rollout_log_probs"].layout == torch.jagged
    assert [row.tolist() for row in data["rollout_log_probs"].unbind()] == [[-1.0, 0.0], rows()[1].tolist()]
    assert data["loss_masks"][0].tolist() == [1.0, 0.0]


def test_masks_as_lists_stay_lists_of_ints() -> None:
    data = miles_dict(loss_masks=[[1, 1], [1, 0, 1]], rollout_log_probs=[[-1.0, None], [-0.1, -0.2, -0.3]])
    with settings(missing="mask_out"):
        guard(data, PersistedBatch, MILES)
    assert data["loss_masks"] == [[1, 0], [1, 0, 1]]
    assert all(type(entry) is int for row in data["loss_masks"] for entry in row)


# -- fields beside the dict ----------------------------------------------------------------------------------------


def test_fields_that_the_dict_does_not_have() -> None:
    batch = guard(
        miles_dict(), PersistedBatch, MILES, group_ids=[7, 7], advantages=live([torch.ones(2), torch.ones(3)])
    )
    assert batch.group_ids == (7, 7)
    assert batch.advantages.tolist() == [1.0] * 5


def test_local_parts_under_context_parallelism() -> None:
    """The scores are this rank's part of each response; masks and lengths of the dict are those of the whole."""
    local = {key: [row[:1] for row in rows()] for key in SCORES}
    masks = [row[:1] for row in miles_dict()["loss_masks"]]
    data = miles_dict(**local)
    data["values"] = live(data["values"])
    batch = guard(data, PersistedBatch, MILES, response_lengths=[1, 1], loss_mask=masks)
    assert len(batch.old_log_probs) == 2
    assert not batch.has("prompt_lengths"), "the total lengths are those of whole responses"
    assert len(data["loss_masks"][1]) == 3
    assert not data["values"][0].requires_grad


def test_a_live_value_in_the_dict_is_cut_even_if_another_one_was_given() -> None:
    data = miles_dict(advantages=live(rows()))
    guard(data, PersistedBatch, MILES, advantages=rows())
    assert not data["advantages"][0].requires_grad


def test_trainable_fields_of_a_dict() -> None:
    scores = plain_dict()["old_log_probs"].requires_grad_() * 1.0
    batch = guard(plain_dict(log_probs=scores), PolicyBatch)
    assert batch.log_probs.requires_grad
    batch = guard(plain_dict(log_probs=scores.detach()), PolicyBatch)
    assert not batch.has("log_probs")


def test_other_names() -> None:
    names = MILES.but(fields={"old_log_probs": "prev", "ref_log_probs": None, "loss_mask": Key("masks")})
    data = miles_dict(prev=rows(), masks=[[1, 1], [1, 1, 1]], loss_masks=..., ref_log_probs=[3])
    batch = guard(data, PersistedBatch, names)
    assert torch.equal(batch.old_log_probs, torch.cat(rows()))
    assert not batch.has("ref_log_probs")
    assert batch.response_lengths == tuple(LENGTHS)
