"""With ``from __future__ import annotations`` every annotation is a string; the contract must hold all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, Metadata, PolicyBatch, RolloutBatch, Trainable, unbound
from rollout_contract.errors import SchemaError, ShapeError
from rollout_contract.roles import Role

if TYPE_CHECKING:
    from decimal import Decimal


class Outer(PolicyBatch):
    """Defined in a module."""

    bonus: Fixed[Float[Tensor, "tokens"]]
    entropy: Trainable[Float[Tensor, "tokens"]] = unbound()


class Holder:
    """Holds a schema that uses a name of its class body."""

    Score = Fixed[Float[Tensor, "tokens"]]

    class Inner(RolloutBatch):
        """Defined in a class."""

        score: Fixed[Float[Tensor, "tokens"]]


def batch_of(schema: Any, **changes: Any) -> Any:
    return schema(response_lengths=[2], loss_mask=[1, 1], **changes)


def test_the_annotations_are_strings() -> None:
    assert isinstance(Outer.__annotations__["bonus"], str)


def test_of_a_module() -> None:
    assert Outer.__plan__["bonus"].role is Role.FIXED
    with pytest.raises(ShapeError):
        batch_of(Outer, old_log_probs=[-1.0, -1.0], advantages=[0.0, 0.0], bonus=torch.ones(3))
    live = torch.ones(2, requires_grad=True)
    built = batch_of(Outer, old_log_probs=[-1.0, -1.0], advantages=[0.0, 0.0], bonus=live * 2)
    assert not built.bonus.requires_grad


def test_of_a_class_body() -> None:
    assert Holder.Inner.__plan__["score"].dims == ("tokens",)


@pytest.mark.uninstrumented("counts stack frames")
def test_of_a_function_with_local_names() -> None:
    Ids = Int[Tensor, "tokens"]
    width = "tokens topk"

    class Local(RolloutBatch):
        ids: Fixed[Ids]
        top: Fixed[Float[Tensor, width]]

    with pytest.raises(ShapeError):
        batch_of(Local, ids=[1, 2, 3], top=torch.ones(2, 4))
    assert batch_of(Local, ids=[1, 2], top=torch.ones(2, 4)).ids.tolist() == [1, 2]


def test_of_a_function_in_a_function() -> None:
    def make() -> type[RolloutBatch]:
        class Deep(RolloutBatch):
            score: Fixed[Float[Tensor, "batch"]]

        return Deep

    assert make().__plan__["score"].axis == "batch"


def test_wrong_roles_are_found_in_strings_too() -> None:
    with pytest.raises(SchemaError, match=r"old_log_probs \[schema\]"):

        class Wrong(PolicyBatch):
            old_log_probs: Trainable[Float[Tensor, "tokens"]]


def test_a_name_that_exists_for_the_checker_alone() -> None:
    with pytest.raises(SchemaError, match="import the name at run time"):

        class Wrong(RolloutBatch):
            price: Metadata[Decimal]
