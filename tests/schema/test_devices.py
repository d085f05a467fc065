"""One device for all fields, told by meta tensors and by fake CUDA tensors, which need no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rollout_contract import OPDBatch, PolicyBatch, settings
from rollout_contract.errors import DeviceError
from rollout_contract.losses.inputs import read
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, policy_batch


def ones(device: str) -> Tensor:
    return torch.ones(5, device=device)


def teacher_batch(device: str, teacher: str, **fields: Any) -> OPDBatch:
    given = {"loss_mask": ones(device).bool(), "old_log_probs": -ones(device), "teacher_log_probs": -ones(teacher)}
    return OPDBatch(response_lengths=LENGTHS, **(given | fields))


def test_a_field_on_another_device() -> None:
    with pytest.raises(DeviceError) as caught:
        policy_batch(advantages=ones("meta"))
    error = caught.value
    assert (error.field, error.expected, error.found) == ("advantages", "cpu, where the batch is", "meta")
    assert error.hint == "move it with .to('cpu'), or tag the field AnyDevice if the loss shall move it"


def test_every_field_on_another_device_is_named() -> None:
    with FakeTensorMode(), pytest.raises(DeviceError) as caught:
        PolicyBatch(
            response_lengths=LENGTHS,
            loss_mask=ones("cuda:0"),
            old_log_probs=ones("cuda:0"),
            advantages=ones("cpu"),
            loss_weights=ones("cuda:1"),
            correction_weights=ones("cuda"),
        )
    found = [(v.field, v.found) for v in caught.value.violations]
    assert found == [("loss_weights", "cuda:1"), ("advantages", "cpu")]


def test_cuda_is_cuda_0() -> None:
    with FakeTensorMode():
        step = PolicyBatch(
            response_lengths=LENGTHS, loss_mask=ones("cuda"), old_log_probs=ones("cuda:0"), advantages=ones("cuda")
        )
        assert step.device == torch.device("cuda:0")
        assert [part.device for part in step.split(samples=1)] == [step.device] * 2
        assert step.weighted("token-mean").loss_weights.device == step.device
        assert step.to("cpu").device == torch.device("cpu")
        assert repr(step).splitlines()[1] == "  loss_mask      bool[5 tokens] cuda:0 fixed"


def test_rows_on_two_devices() -> None:
    with FakeTensorMode(), pytest.raises(DeviceError) as caught:
        policy_batch(advantages=[torch.ones(2, device="cuda"), torch.ones(3)], loss_mask=ones("cpu"))
    assert caught.value.violations[0].row == 1


def test_lists_are_made_where_the_tensors_are() -> None:
    batch = PolicyBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        old_log_probs=torch.tensor(OLD, device="meta"),
        advantages=torch.tensor(ADVANTAGES, device="meta"),
    )
    assert batch.loss_mask.device.type == "meta"


def test_a_scalar_on_the_cpu_mixes_with_nothing() -> None:
    with FakeTensorMode(), pytest.raises(ValueError, match=r"advantages \[device\]"):
        PolicyBatch(
            response_lengths=LENGTHS, loss_mask=ones("cuda"), old_log_probs=ones("cuda"), advantages=torch.tensor(1.0)
        )


def test_the_teacher_stays_where_it_is_and_is_moved_by_the_loss() -> None:
    with FakeTensorMode():
        batch = teacher_batch("cuda", "cpu")
        assert batch.device == torch.device("cuda:0")
        assert batch.teacher_log_probs.device == torch.device("cpu")
        assert read(batch, "teacher_log_probs").device == batch.device
        assert batch.teacher_log_probs.device == torch.device("cpu")
        parts = batch.split(samples=1)
        assert [part.teacher_log_probs.device.type for part in parts] == ["cpu", "cpu"]
        moved = batch.to("cpu")
        assert {moved.teacher_log_probs.device.type, moved.old_log_probs.device.type} == {"cpu"}


def test_the_teacher_alone_does_not_choose_the_device_of_the_batch() -> None:
    batch = OPDBatch(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=OLD, teacher_log_probs=ones("meta"))
    assert batch.device == torch.device("cpu")
    assert batch.to("meta").device == torch.device("meta")


def test_parts_whose_teachers_lie_apart_do_not_join() -> None:
    near, far = teacher_batch("cpu", "cpu"), teacher_batch("cpu", "meta")
    with pytest.raises(DeviceError) as caught:
        OPDBatch.concat([near, far])
    assert caught.value.field == "teacher_log_probs"
    with pytest.raises(DeviceError, match="use to"):
        OPDBatch.concat([near, near.to("meta")])


def test_the_default_device_is_that_of_lists() -> None:
    with torch.device("meta"):
        batch = policy_batch(old_log_probs=OLD, advantages=ADVANTAGES)
    assert batch.device.type == "meta"


def test_the_rule_holds_on_level_structure_and_not_on_off() -> None:
    with settings(level="structure"), pytest.raises(DeviceError):
        policy_batch(advantages=ones("meta"))
    with settings(level="off"):
        policy_batch(advantages=ones("meta"))


# -- tensors without values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "structure", "values", "auto"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_have_no_values_to_look_at(level: Any, device: str) -> None:
    with FakeTensorMode(), settings(level=level):
        step = PolicyBatch(
            response_lengths=LENGTHS,
            loss_mask=ones(device).long(),
            old_log_probs=ones(device),
            advantages=ones(device),
        )
        assert len(step.weighted("seq-mean-token-mean").split(samples=1)) == 2
        if device == "cpu":
            step.select([1, 0])


@pytest.mark.parametrize("level", ["off", "structure", "values", "auto"])
def test_meta_tensors_have_no_values_to_look_at(level: Any) -> None:
    with settings(level=level):
        step = policy_batch(loss_mask=ones("meta"), old_log_probs=ones("meta"), advantages=ones("meta"))
        parts = step.weighted("prompt-mean").split(max_tokens=3)
        assert [part.loss_weights.shape for part in parts] == [(2,), (3,)]
        assert step.summary().tokens == 5
