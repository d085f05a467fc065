"""The tags at run time: what they annotate, and that isinstance looks at the graph."""

from __future__ import annotations

from typing import Annotated, get_args

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int, TypeCheckError, jaxtyped
from torch import Tensor, nn

from rollout_contract import Fixed, FixedTensor, Metadata, PerSample, Trainable, TrainableTensor, unbound
from rollout_contract.roles import Role
from tests.schema.batches import live, policy_batch

PLAIN = torch.ones(3)


def test_tags_are_annotations() -> None:
    array = Float[Tensor, "tokens"]
    assert get_args(Fixed[array]) == (array, Role.FIXED)
    assert get_args(Trainable[array]) == (array, Role.TRAINABLE)
    assert get_args(Metadata[int]) == (int, Role.METADATA)
    assert get_args(PerSample[int]) == (tuple[int, ...], Role.PER_SAMPLE)
    assert Fixed[Annotated[array, "note"]] == Annotated[array, "note", Role.FIXED]
    assert [repr(role) for role in Role] == ["fixed", "trainable", "metadata", "per sample"]
    assert repr(unbound()) == "unbound()"


def test_isinstance_looks_at_the_graph() -> None:
    leaf = torch.ones(3, requires_grad=True)
    for tensor, is_fixed in ((PLAIN, True), (leaf, False), (leaf * 2, False), (leaf.detach(), True)):
        assert isinstance(tensor, FixedTensor) is is_fixed
        assert isinstance(tensor, TrainableTensor) is not is_fixed
    assert isinstance(nn.Parameter(PLAIN), TrainableTensor)
    assert not isinstance(1.0, FixedTensor)
    assert not isinstance(None, TrainableTensor)


def test_anything_may_be_trainable_where_nothing_is_trained() -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert isinstance(PLAIN, TrainableTensor)


def test_fields_of_a_batch_are_what_their_tags_say() -> None:
    step = policy_batch().bind(log_probs=live())
    assert isinstance(step.old_log_probs, FixedTensor)
    assert isinstance(step.log_probs, TrainableTensor)
    assert not isinstance(step.log_probs, FixedTensor)


def test_dtype_dimensions_and_graph_are_one_check() -> None:
    assert isinstance(PLAIN, Float[FixedTensor, "tokens"])
    assert not isinstance(PLAIN, Float[FixedTensor, "tokens topk"])
    assert not isinstance(PLAIN, Int[FixedTensor, "tokens"])
    assert not isinstance(PLAIN.clone().requires_grad_(), Float[FixedTensor, "tokens"])


@jaxtyped(typechecker=beartype)
def surrogate(
    log_probs: Float[TrainableTensor, "tokens"], old: Float[FixedTensor, "tokens"], advantages: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    return -(log_probs - old).exp() * advantages


def test_a_checked_function_refuses_a_live_tensor_a_detached_one_and_another_size() -> None:
    leaf = PLAIN.clone().requires_grad_()
    surrogate(leaf, PLAIN, PLAIN).sum().backward()
    assert leaf.grad is not None
    for wrong in (
        (leaf, leaf, PLAIN),
        (PLAIN, PLAIN, PLAIN),
        (leaf, PLAIN, torch.ones(2)),
        (leaf, torch.ones(2), PLAIN),
    ):
        with pytest.raises(TypeCheckError):
            surrogate(*wrong)


def test_isinstance_inside_a_checked_function_binds_dimensions() -> None:
    @jaxtyped(typechecker=beartype)
    def check(x: Float[Tensor, "tokens"], y: Tensor) -> bool:
        return isinstance(y, Float[FixedTensor, "tokens"])

    assert check(PLAIN, PLAIN)
    assert not check(PLAIN, torch.ones(2))
    assert not check(PLAIN, PLAIN.clone().requires_grad_())
