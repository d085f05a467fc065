"""What a function takes, read from its annotations."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

from rollout_contract.check.dims import ArraySpec, array_spec
from rollout_contract.check.findings import CannotCheckError
from rollout_contract.check.plain import Unresolved, plain_value
from rollout_contract.check.sizes import FIRST
from rollout_contract.schema.batch import RolloutBatch


@dataclass(frozen=True)
class Parameter:
    """One parameter, or one field of a structure; at most one of ``schema``, ``spec`` and ``members`` is set.

    Attributes:
        name: of the parameter.
        kind: as in ``inspect.Parameter``.
        schema: the batch that it is.
        spec: the tensor that it is.
        members: the fields of the dataclass, named tuple or typed dictionary that it is.
        annotation: as evaluated.
    """

    name: str
    kind: Any
    schema: type[RolloutBatch] | None = None
    spec: ArraySpec | None = None
    members: tuple[Parameter, ...] = ()
    annotation: Any = None

    @property
    def has_role(self) -> bool:
        return self.spec is not None and self.spec.role is not None

    @property
    def is_bare_tensor(self) -> bool:
        """A tensor about which nothing is said."""
        return self.spec is not None and not self.is_annotated_tensor

    @property
    def is_annotated_tensor(self) -> bool:
        return self.spec is not None and (self.spec.dims is not None or self.spec.role is not None)


def flat(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The parameters, with structures replaced by their fields."""
    return [part for parameter in parameters for part in (flat(parameter.members) or [parameter])]


def is_schema(thing: Any) -> TypeGuard[type[RolloutBatch]]:
    return inspect.isclass(thing) and issubclass(thing, RolloutBatch)


def _schema_of(annotation: Any) -> type[RolloutBatch] | None:
    if isinstance(annotation, TypeVar):
        return _schema_of(annotation.__bound__)
    if is_schema(annotation):
        return annotation
    members = (member for member in get_args(annotation) if is_schema(member))
    return next(members, None) if get_origin(annotation) is not type else None


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    plain = inspect.unwrap(function)
    try:
        return typing.get_type_hints(plain, include_extras=True)
    except Exception:
        return {name: _evaluated(text, plain) for name, text in getattr(plain, "__annotations__", {}).items()}


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(function, "__globals__", {}))
    except Exception:
        return Unresolved(annotation)


def return_annotation(function: Callable[..., Any]) -> Any:
    """The evaluated return annotation."""
    return _annotations(function).get("return", inspect.Signature.empty)


def parameters_of(function: Callable[..., Any], lenient: bool = False) -> list[Parameter]:
    """The parameters that have to be given. With ``lenient``, also those that nobody can make up a value for.

    Raises:
        CannotCheckError: a value cannot be made up for one of them.
    """
    code = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(code):
        code = type(code).__call__
    hints = _annotations(code)
    if not lenient and "self" in inspect.signature(function).parameters:
        raise CannotCheckError("it is a method; give the module an object that is called, or a function")
    found = list(_needed(function, hints))
    if not lenient:
        _require_values(found)
    return found


def _needed(function: Callable[..., Any], hints: Mapping[str, Any]) -> Iterator[Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
            continue
        found = _parameter(parameter.name, parameter.kind, hints.get(parameter.name))
        # A parameter with a default is left to it, even a tensor: None is what most callers pass then.
        if parameter.default is parameter.empty or found.schema is not None:
            yield found


def _parameter(name: str, kind: Any, annotation: Any) -> Parameter:
    schema = _schema_of(annotation)
    spec = None if schema else array_spec(annotation)
    members = () if schema or spec else tuple(_members(annotation))
    return Parameter(name, kind, schema, spec, members, annotation)


def _members(annotation: Any) -> Iterator[Parameter]:
    """The fields that a structure of annotated tensors needs; none for any other class."""
    is_structure = dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields")
    if not isinstance(annotation, type) or not (is_structure or typing.is_typeddict(annotation)):
        return
    try:
        hints = typing.get_type_hints(annotation, include_extras=True)
    except Exception:
        return
    fields = [_parameter(name, inspect.Parameter.KEYWORD_ONLY, hints[name]) for name in _required(annotation, hints)]
    if any(field.is_annotated_tensor for field in fields):
        yield from fields


def _required(structure: Any, hints: Mapping[str, Any]) -> list[str]:
    if typing.is_typeddict(structure):
        return [name for name in hints if name in structure.__required_keys__]
    parameters = inspect.signature(structure).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.name in hints]


def _require_values(parameters: Sequence[Parameter]) -> None:
    """Fail now if a value cannot be made up, with the reason."""
    parameters = flat(parameters)
    named = any(p.spec is not None and p.spec.dims is not None for p in parameters)
    by_role = any(p.is_annotated_tensor for p in parameters) and not named
    for parameter in parameters:
        if parameter.schema is None and parameter.spec is None:
            plain_value(parameter.name, parameter.annotation, FIRST)
        elif parameter.is_bare_tensor and not by_role and "mask" not in parameter.name:
            shown = f'annotate its dimensions, such as Float[Tensor, "tokens"]: parameter {parameter.name}'
            raise CannotCheckError(f"the shape of a tensor is not known; {shown}")
