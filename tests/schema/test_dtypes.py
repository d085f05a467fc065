"""What is kept, what is converted because nothing is lost, and what is refused because something was lost already."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from rollout_contract import Fixed, RolloutBatch, Trainable, Upcast, policy_loss, settings, unbound
from rollout_contract.errors import DTypeError
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import RewardBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, live, policy_batch

HALVES = [torch.float16, torch.bfloat16]


class Mixed(RolloutBatch):
    """Dtypes of every kind."""

    exact: Fixed[Float32[Tensor, "tokens"]] = unbound()
    forgiving: Fixed[Annotated[Float[Tensor, "tokens"], Upcast]] = unbound()
    ids: Fixed[Int[Tensor, "tokens"]] = unbound()
    wide_ids: Fixed[Int64[Tensor, "tokens"]] = unbound()
    live: Trainable[Float[Tensor, "tokens"]] = unbound()


def mixed(**fields: Any) -> Mixed:
    return Mixed(response_lengths=LENGTHS, loss_mask=MASK, **fields)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_and_float64_are_kept(dtype: torch.dtype) -> None:
    step = policy_batch(old_log_probs=torch.tensor(OLD, dtype=dtype), advantages=torch.tensor(ADVANTAGES, dtype=dtype))
    assert step.old_log_probs.dtype == step.advantages.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_refused_unless_somebody_takes_it(dtype: torch.dtype) -> None:
    half = torch.tensor(OLD, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(DTypeError) as caught:
        policy_batch(old_log_probs=half)
    assert (caught.value.field, caught.value.expected, caught.value.found) == (
        "old_log_probs",
        "float32 or float64",
        name,
    )
    with settings(half_precision="upcast"):
        step = policy_batch(old_log_probs=half)
    assert step.old_log_probs.dtype == torch.float32
    assert step.old_log_probs.tolist() == half.tolist()
    assert step.repairs == {f"old_log_probs: upcast from {name}": 5}
    batch = mixed(forgiving=half)
    assert batch.forgiving.dtype == torch.float32
    assert batch.repairs == {f"forgiving: upcast from {name}": 5}


def test_a_live_half_precision_field_is_upcast_with_its_graph() -> None:
    half = torch.tensor(OLD).bfloat16().requires_grad_()
    with pytest.raises(DTypeError):
        policy_batch().bind(log_probs=half)
    with settings(half_precision="upcast"):
        step = policy_batch().weighted("token-mean").bind(log_probs=half)
    policy_loss(step, PPOClip()).backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integer_rewards_become_float32(dtype: torch.dtype) -> None:
    batch = RewardBatch(response_lengths=LENGTHS, loss_mask=MASK, rewards=torch.tensor([1, 0]).to(dtype))
    assert batch.rewards.dtype == torch.float32
    assert batch.rewards.tolist() == [1.0, 0.0]
    assert RewardBatch(response_lengths=LENGTHS, loss_mask=MASK, rewards=[1, 0]).rewards.dtype == torch.float32
    assert RewardBatch(response_lengths=LENGTHS, loss_mask=MASK, rewards=[True, False]).rewards.tolist() == [1.0, 0.0]


def test_numbers_without_a_dtype_are_float32_and_arrays_keep_theirs() -> None:
    assert policy_batch(advantages=ADVANTAGES).advantages.dtype == torch.float32
    assert policy_batch(advantages=np.array(ADVANTAGES)).advantages.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integer_fields_keep_any_integer(dtype: torch.dtype) -> None:
    assert mixed(ids=torch.arange(5).to(dtype)).ids.dtype == dtype


def test_another_dtype_is_refused() -> None:
    with pytest.raises(DTypeError) as caught:
        mixed(exact=torch.zeros(5, dtype=torch.float64), ids=torch.zeros(5), wide_ids=torch.zeros(5, dtype=torch.int32))
    assert [(v.field, v.expected, v.found, v.hint) for v in caught.value.violations] == [
        ("exact", "float32", "float64", "convert it to float32"),
        ("ids", "int8 or int16 or int32 or int64", "float32", "convert it to int64"),
        ("wide_ids", "int64", "int32", "convert it to int64"),
    ]


def test_float64_advantages_do_not_promote_the_loss() -> None:
    step = policy_batch(advantages=torch.tensor(ADVANTAGES, dtype=torch.float64)).weighted("token-mean")
    for dtype in (torch.float32, torch.float64):
        assert policy_loss(step.bind(log_probs=live().to(dtype)), PPOClip()).value.dtype == dtype


def test_the_check_is_made_at_every_level() -> None:
    with settings(level="off"), pytest.raises(DTypeError):
        policy_batch(old_log_probs=torch.tensor(OLD).half())
