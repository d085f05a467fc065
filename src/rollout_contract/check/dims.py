"""Dimensions: from jaxtyping annotations to sizes, and from sizes back to names."""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from torch import Tensor

from rollout_contract.check.sizes import Sizes
from rollout_contract.roles import AnyDevice, FixedTensor, Role, TrainableTensor

Family: TypeAlias = Literal["float", "int", "bool"]

_ROLE_OF_TYPE: dict[Any, Role | None] = {Tensor: None, FixedTensor: Role.FIXED, TrainableTensor: Role.TRAINABLE}


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an annotation says about a tensor.

    Attributes:
        dims: as written, for example ``("tokens", "topk")``; None when the annotation names no dimensions.
        dtypes: names of the dtypes that are allowed; empty for any.
        role: fixed or trainable, if the annotation says so.
        any_device: whether it may lie on another device than the batch.
    """

    dims: tuple[str, ...] | None
    dtypes: tuple[str, ...] = ()
    role: Role | None = None
    any_device: bool = False

    @property
    def family(self) -> Family:
        if not self.dtypes or any(name.startswith(("float", "bfloat")) for name in self.dtypes):
            return "float"
        return "bool" if all(name.startswith("bool") for name in self.dtypes) else "int"

    def __str__(self) -> str:
        shape = "" if self.dims is None else f"[{' '.join(self.dims)}]"
        return f"{self.role.value + ' ' if self.role else ''}{self.family}{shape}"


def array_spec(annotation: Any) -> ArraySpec | None:
    """What the annotation says, or None when it is not about one tensor."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *tags = get_args(annotation)
        return _tagged(array_spec(inner), tags)
    if origin in (Union, types.UnionType):
        return next((spec for part in get_args(annotation) if (spec := array_spec(part))), None)
    if annotation in _ROLE_OF_TYPE:
        return ArraySpec(None, role=_ROLE_OF_TYPE[annotation])
    array_type = getattr(annotation, "array_type", None)
    if array_type not in _ROLE_OF_TYPE or not isinstance(getattr(annotation, "dim_str", None), str):
        return None
    dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple | list) else ()
    return ArraySpec(tuple(annotation.dim_str.split()), tuple(map(str, dtypes)), _ROLE_OF_TYPE[array_type])


def _tagged(spec: ArraySpec | None, tags: Sequence[Any]) -> ArraySpec | None:
    if spec is None:
        return None
    role = next((tag for tag in tags if isinstance(tag, Role)), spec.role)
    return ArraySpec(spec.dims, spec.dtypes, role, spec.any_device or AnyDevice in tags)


class Dims:
    """The size of every named dimension in one run. Names that the layout does not know get primes of their own."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes: dict[str, int] = dict(sizes.named)
        self._given: set[str] = set()
        self._spare = iter(sizes.spare)

    def __getitem__(self, name: str) -> int:
        if name not in self._sizes:
            self._sizes[name] = next(self._spare)
        return self._sizes[name]

    @property
    def are_of_a_layout(self) -> bool:
        """Whether every dimension of the input is one that this library gives a meaning."""
        return self._given <= {"tokens", "batch", "groups", "sequence", "topk", "vocab"}

    def give(self, *names: str) -> None:
        """Note that the input has these dimensions, so that a result cannot choose their sizes."""
        self._given.update(names)

    def shape(self, dims: Sequence[str]) -> tuple[int, ...]:
        """The shape to make for ``dims``."""
        return tuple(self._size(dim, position) for position, dim in enumerate(dims))

    def _size(self, dim: str, position: int) -> int:
        if dim.startswith("*"):
            # Variadic dimensions of several tensors usually have to broadcast, whatever they are called.
            return self["tokens"]
        dim = dim.rpartition("=")[2].lstrip("#?")
        if dim in ("...", "_", "") or dim.startswith("_"):
            return self[f"{dim} {position}"]
        return int(dim) if dim.isdigit() else self._evaluate(dim)

    def _evaluate(self, expression: str) -> int:
        names = {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}
        self.give(*names)
        return int(eval(expression, {"__builtins__": {}}, {name: self[name] for name in names}))

    def accepts(self, dims: Sequence[str], shape: Sequence[int]) -> bool:
        """Whether a result of this shape is what ``dims`` promise. Names that no input has bind to what is found."""
        variadic = [i for i, dim in enumerate(dims) if dim == "..."]
        if variadic:
            before, after = dims[: variadic[0]], dims[variadic[0] + 1 :]
            extra = len(shape) - len(before) - len(after)
            if extra < 0:
                return False
            return self._match(before, shape[: len(before)]) and self._match(after, shape[len(before) + extra :])
        return len(dims) == len(shape) and self._match(dims, shape)

    def _match(self, dims: Sequence[str], shape: Sequence[int]) -> bool:
        for dim, size in zip(dims, shape, strict=True):
            name = dim.lstrip("#?*")
            if name.startswith("_"):
                continue
            if name.isidentifier() and name not in self._given:
                self._sizes[name] = size
            if self._size(dim, 0) != size:
                return False
        return True

    def label(self, size: int) -> str:
        """The size with the name of its dimension, for example ``23 tokens``."""
        names = [name for name, known in self._sizes.items() if known == size and " " not in name]
        return f"{size} {names[0]}" if names else str(size)

    def names(self, size: int) -> list[str]:
        """The dimensions that have this size."""
        return [name for name, known in self._sizes.items() if known == size]

    def show(self, shape: Sequence[int]) -> str:
        """For example ``[23 tokens, 3 topk]``."""
        return f"[{', '.join(self.label(size) for size in shape)}]"
