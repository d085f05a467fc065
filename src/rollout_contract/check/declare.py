"""How a function says of itself that it is a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MARK = "__rollout_contract_loss__"


def loss(function: FunctionT) -> FunctionT:
    """Declare that a function which returns a tensor is a loss, so that splits and permutations are checked too.

    A function that is annotated to return a :class:`~rollout_contract.Loss` needs no mark.

    >>> @loss
    ... def my_loss(batch: PolicyBatch) -> Tensor: ...
    """
    setattr(function, _MARK, True)
    return function


def is_declared_loss(function: Any) -> bool:
    return bool(getattr(function, _MARK, False))
