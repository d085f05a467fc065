"""What a function takes, read from its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeGuard, TypeVar, get_args, get_origin

import torch

from rollout_contract.check import values
from rollout_contract.check.dims import ArraySpec, array_spec
from rollout_contract.check.findings import CannotCheckError
from rollout_contract.check.sizes import FIRST, Sizes
from rollout_contract.layout import Layout
from rollout_contract.schema.batch import RolloutBatch


@dataclass(frozen=True)
class Parameter:
    """One parameter; at most one of ``schema`` and ``spec`` is set."""

    name: str
    kind: Any
    schema: type[RolloutBatch] | None = None
    spec: ArraySpec | None = None
    annotation: Any = None

    @property
    def has_role(self) -> bool:
        return self.spec is not None and self.spec.role is not None

    @property
    def is_annotated_tensor(self) -> bool:
        return self.spec is not None and (self.spec.dims is not None or self.spec.role is not None)


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


@dataclass(frozen=True)
class Unresolved:
    """An annotation with a name that is only there for type checkers."""

    text: str

    @property
    def is_about_tensors(self) -> bool:
        return any(word in self.text for word in ("Batch", "Tensor", "Fixed[", "Trainable["))


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
        annotation = hints.get(parameter.name)
        schema = _schema_of(annotation)
        spec = None if schema else array_spec(annotation)
        # A parameter with a default is left to it, even a tensor: None is what most callers pass then.
        if parameter.default is parameter.empty or schema is not None:
            yield Parameter(parameter.name, parameter.kind, schema, spec, annotation)


def _require_values(parameters: Sequence[Parameter]) -> None:
    """Fail now if a value cannot be made up, with the reason."""
    named = any(p.spec is not None and p.spec.dims is not None for p in parameters)
    by_role = any(p.is_annotated_tensor for p in parameters) and not named
    for parameter in parameters:
        if parameter.schema is None and parameter.spec is None:
            plain_value(parameter, FIRST)
        elif parameter.spec is not None and not parameter.is_annotated_tensor and not by_role:
            shown = f'annotate its dimensions, such as Float[Tensor, "tokens"]: parameter {parameter.name}'
            raise CannotCheckError(f"the shape of a tensor is not known; {shown}")


def plain_value(parameter: Parameter, sizes: Sizes) -> Any:
    """An argument that is neither a batch nor a tensor."""
    kind = parameter.annotation
    if kind is Layout:
        return Layout(sizes.response_lengths, prompt_lengths=sizes.prompt_lengths, group_ids=sizes.group_ids)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    known = {torch.device: torch.device("cpu"), torch.dtype: torch.float32, None: None}
    if kind in known and kind is not None:
        return known[kind]
    number = values.scalar(parameter.name, kind, sizes) if kind in (bool, int, float) else None
    if number is not None:
        return number
    return _other_value(parameter)


def _other_value(parameter: Parameter) -> Any:
    kind = parameter.annotation
    if isinstance(kind, Unresolved):
        shown = f"{parameter.name}: {kind.text}"
        raise CannotCheckError(f"an annotation cannot be evaluated at run time ({shown}); import its names")
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if type(None) in get_args(kind):
        return None
    if inspect.isclass(kind) and kind not in (str, object):
        try:
            return kind()
        except Exception as error:
            shown = f"{parameter.name}: {kind.__name__}"
            raise CannotCheckError(f"no value for parameter {shown}: {kind.__name__}() fails; {_REPAIR}") from error
    shown = parameter.name if kind is None else f"{parameter.name}: {getattr(kind, '__name__', kind)}"
    raise CannotCheckError(f"no value can be made up for parameter {shown}; {_REPAIR}")


_REPAIR = "give it a default, or give the module a functools.partial that fills it in"
