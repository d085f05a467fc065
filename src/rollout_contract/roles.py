"""Roles: what a loss may differentiate, and what it may only read.

A field of a schema is tagged once, where it is declared::

    class MyStep(RolloutBatch):
        log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()
        old_log_probs: Fixed[Float[Tensor, "tokens"]]

Two stories are told about the same tag. A type checker sees a descriptor: the constructor takes a plain tensor (or
ragged lists), the attribute reads as :class:`FixedTensor` or :class:`TrainableTensor`, and it cannot be assigned,
because the descriptor's ``__set__`` only takes an object that no user can hold. At run time ``Fixed[X]`` is
``Annotated[X, FIXED]``, which the schema compiles once, when the class is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar, overload

import torch
from torch import Tensor

FieldInput: TypeAlias = Tensor | list[Any] | tuple[Any, ...]
"""What a constructor takes for a tensor field: a packed tensor, or ragged rows (tensors or lists of numbers)."""

T = TypeVar("T")


class Role(Enum):
    """What the contract says about the graph of a field."""

    FIXED = "fixed"
    TRAINABLE = "trainable"
    METADATA = "metadata"
    PER_SAMPLE = "per sample"

    def __repr__(self) -> str:
        return self.value


class AnyDevice:
    """Marks a field that may lie on another device than the batch, as a teacher's scores often do.

    It stays there in the batch; the loss that reads it moves it.
    """


class Upcast:
    """Marks a field that accepts half precision and converts it to float32.

    The precision that was lost when the scores were made is not recovered: a bfloat16 log-prob near -12 is off by 3 %.
    """


class AllowNaN:
    """Marks a field in which NaN says that there is no value, such as a reward that could not be computed."""


class Unbound:
    """The default of a field that gets its value after the build, by ``bind`` or by a step of the life cycle."""

    def __repr__(self) -> str:
        return "unbound()"


UNBOUND = Unbound()


def unbound() -> Any:
    """Declare that a field is not given to the constructor but bound later (see ``RolloutBatch.bind``)."""
    return UNBOUND


if TYPE_CHECKING:

    class FixedTensor(Tensor):
        """A tensor that carries no autograd graph because a contract cut it."""

    class TrainableTensor(Tensor):
        """A tensor of the current forward pass, through which the loss is differentiated."""

    class OnlyWhileBuilding:
        """Nobody holds one: a batch is frozen, its fields are set by its constructor alone."""

    class Fixed(Generic[T]):
        """A field that the loss reads and never differentiates."""

        @overload
        def __get__(self, instance: None, owner: Any) -> Fixed[T]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> FixedTensor: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: OnlyWhileBuilding, value: FieldInput) -> None: ...

    class Trainable(Generic[T]):
        """A field that the loss is differentiated through."""

        @overload
        def __get__(self, instance: None, owner: Any) -> Trainable[T]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> TrainableTensor: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: OnlyWhileBuilding, value: FieldInput) -> None: ...

    class Metadata(Generic[T]):
        """A host value that rides with the batch; pydantic validates it against the annotation."""

        @overload
        def __get__(self, instance: None, owner: Any) -> Metadata[T]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> T: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: OnlyWhileBuilding, value: T) -> None: ...

    class PerSample(Generic[T]):
        """Host values, one for each sample; pydantic validates each, and every cut of the batch cuts them too."""

        @overload
        def __get__(self, instance: None, owner: Any) -> PerSample[T]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> tuple[T, ...]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: OnlyWhileBuilding, value: Sequence[T] | Tensor) -> None: ...

else:

    class _GraphlessMeta(type(Tensor)):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, Tensor) and not instance.requires_grad

    class _LiveMeta(type(Tensor)):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, Tensor) and (instance.requires_grad or not torch.is_grad_enabled())

    class FixedTensor(Tensor, metaclass=_GraphlessMeta):
        """A tensor without an autograd graph; ``isinstance`` looks at the graph, not at the class."""

    class TrainableTensor(Tensor, metaclass=_LiveMeta):
        """A tensor with an autograd graph (or any tensor while grad mode is off)."""

    class Fixed:
        """``Fixed[X]`` tags a field that the loss reads and never differentiates."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[item, Role.FIXED]

    class Trainable:
        """``Trainable[X]`` tags a field that the loss is differentiated through."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[item, Role.TRAINABLE]

    class Metadata:
        """``Metadata[X]`` tags a host value that rides with the batch; pydantic validates it against ``X``."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[item, Role.METADATA]

    class PerSample:
        """``PerSample[X]`` tags host values, one for each sample; every cut of the batch cuts them too."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[tuple[item, ...], Role.PER_SAMPLE]
