"""Finding what there is to check: schemas, functions that read them, and functions with annotated tensors."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from rollout_contract.check.declare import is_declared_loss
from rollout_contract.check.findings import CannotCheckError, Place, Unchecked
from rollout_contract.check.lines import Source, assignment
from rollout_contract.check.parameters import Parameter, flat, is_schema, parameters_of, return_annotation
from rollout_contract.check.plain import Unresolved
from rollout_contract.losses.loss import Consumption, Loss
from rollout_contract.losses.term import schema_of, token_loss
from rollout_contract.schema.batch import RolloutBatch


@dataclass(frozen=True)
class Subject:
    """A function to check.

    Attributes:
        name: ``module:name``.
        call: what is run.
        code: the function whose signature says what it takes and whose source is searched for lines.
        parameters: what it takes, in order.
        returns: its evaluated return annotation; ``inspect.Signature.empty`` when there is none.
        declared: whether it says of itself that it is a loss (it returns a Loss, or is marked).
        splittable: False for an objective that declares statistics over its micro-batch.
    """

    name: str
    call: Callable[..., Any]
    code: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    returns: Any
    declared: bool
    splittable: bool = True
    declaration: Place | None = field(default=None, compare=False)

    @cached_property
    def source(self) -> Source:
        return Source(self.code)

    @property
    def place(self) -> Place:
        return self.declaration or self.source.place

    @property
    def home(self) -> str:
        """The file whose lines faults are reported at."""
        return self.source.file

    @property
    def is_in_contract(self) -> bool:
        """Whether gradients and masks are its business: it is a loss, reads a schema, or names roles."""
        return self.declared or any(p.schema is not None or p.has_role for p in flat(self.parameters))


@dataclass(frozen=True)
class SchemaSubject:
    """A schema to check."""

    name: str
    schema: type[RolloutBatch]

    @cached_property
    def source(self) -> Source:
        return Source(self.schema)

    @property
    def place(self) -> Place:
        return self.source.place


AnySubject = Subject | SchemaSubject


def load(target: str) -> tuple[ModuleType, str]:
    """Import the module of ``module`` or ``module:name``; the second item is the name, or empty."""
    module, _, name = target.partition(":")
    if not module or module.endswith(".py") or "/" in module:
        raise CannotCheckError("a target is a module, or module:name, such as mytrainer.losses:policy_loss")
    return importlib.import_module(module), name


def find(target: str) -> Iterator[AnySubject | Unchecked]:
    """Everything to check in a module, in a package with all its modules, or the one object of ``module:name``."""
    module, name = load(target)
    if name:
        thing = _attribute(module, name)
        found = list(_subjects(module, name, thing, explicit=True))
        if not found:
            raise CannotCheckError(f"{target} has no parameter with a schema or an annotated tensor")
        yield from found
        return
    for part in _with_submodules(module):
        if isinstance(part, Unchecked):
            yield part
            continue
        for key, thing in list(vars(part).items()):
            if not key.startswith("_"):
                yield from _subjects(part, key, thing, explicit=False)


def _attribute(module: ModuleType, path: str) -> Any:
    thing: Any = module
    for name in path.split("."):
        if not hasattr(thing, name):
            raise CannotCheckError(f"{module.__name__} has no {path}")
        thing = getattr(thing, name)
    return thing


def _with_submodules(module: ModuleType) -> Iterator[ModuleType | Unchecked]:
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", []), f"{module.__name__}."):
        try:
            yield from _with_submodules(importlib.import_module(info.name))
        except Exception as error:
            yield Unchecked(info.name, Place("", 0), f"import failed: {type(error).__name__}: {error}")


def _subjects(module: ModuleType, key: str, thing: Any, explicit: bool) -> Iterator[AnySubject | Unchecked]:
    name = f"{module.__name__}:{key}"
    mine = explicit or getattr(thing, "__module__", None) == module.__name__
    try:
        if is_schema(thing):
            if mine:
                yield SchemaSubject(name, thing)
        elif inspect.isclass(thing):
            if mine:
                yield from _of_class(name, thing)
        elif inspect.isroutine(thing):
            if mine:
                yield from _of_function(name, thing)
        elif _is_object_of_interest(thing):
            declaration = assignment(module.__file__ or "", key)
            if explicit or declaration is not None:
                yield from _of_object(name, thing, declaration)
    except CannotCheckError as error:
        place = Source(thing).place if callable(thing) else Place(module.__file__ or "", 0)
        yield Unchecked(name, place, str(error))


# -- functions, objects and classes --------------------------------------------------------------------------------


def _of_function(name: str, function: Callable[..., Any]) -> Iterator[Subject]:
    if is_interesting(function):
        yield make_subject(name, function, function)


def is_interesting(function: Callable[..., Any]) -> bool:
    """Whether a parameter is annotated with a schema, or with a tensor that has dimensions or a role."""
    found = parameters_of(function, lenient=True)
    unresolved = any(isinstance(p.annotation, Unresolved) and p.annotation.is_about_tensors for p in found)
    return unresolved or any(p.schema is not None or p.is_annotated_tensor for p in flat(found))


def make_subject(
    name: str,
    call: Callable[..., Any],
    code: Callable[..., Any],
    *,
    declaration: Place | None = None,
) -> Subject:
    """A subject from a callable; ``code`` is the function that carries annotations and source."""
    returns = return_annotation(code)
    declared = is_declared_loss(call) or is_declared_loss(code) or returns is Loss
    return Subject(name, call, code, tuple(parameters_of(call)), returns, declared, declaration=declaration)


def _schema_of_terms(thing: Any) -> type[RolloutBatch] | None:
    """What the terms of an objective read; None for any other thing."""
    if isinstance(thing, type) or not callable(getattr(thing, "terms", None)):
        return None
    try:
        return schema_of(thing)
    except Exception:
        return None


def _is_object_of_interest(thing: Any) -> bool:
    """Objectives, partials, and objects of user classes that can be called with a schema."""
    if isinstance(thing, partial):
        return is_interesting(thing.func)
    if _schema_of_terms(thing) is not None:
        return True
    method = vars(type(thing)).get("__call__")
    return inspect.isfunction(method) and is_interesting(method)


def _of_object(name: str, thing: Any, declaration: Place | None) -> Iterator[Subject]:
    if isinstance(thing, partial):
        yield from _of_partial(name, thing, declaration)
    elif (schema := _schema_of_terms(thing)) is not None:
        yield subject_of_terms(name, thing, schema, declaration)
    else:
        yield make_subject(name, thing, type(thing).__call__, declaration=declaration)


def _of_partial(name: str, thing: partial[Any], declaration: Place | None) -> Iterator[Subject]:
    """A partial; where it fixes an objective for ``policy_loss``, the objective says what the batch is."""
    given = [value for value in (*thing.args, *thing.keywords.values()) if _schema_of_terms(value) is not None]
    parameters = parameters_of(thing)
    if not given:
        yield make_subject(name, thing, inspect.unwrap(thing.func), declaration=declaration)
        return
    schema = _schema_of_terms(given[0])
    parameters = [replace(p, schema=schema) if p.schema is not None else p for p in parameters]
    returns, splits = return_annotation(thing.func), not getattr(given[0], "batch_statistics", False)
    declared = returns is Loss or is_declared_loss(thing.func)
    yield Subject(name, thing, type(given[0]).terms, tuple(parameters), returns, declared, splits, declaration)


def subject_of_terms(name: str, term: Any, schema: type[RolloutBatch], declaration: Place | None) -> Subject:
    """The loss of an objective, or of any other term."""
    batch = Parameter("batch", inspect.Parameter.POSITIONAL_ONLY, schema=schema)
    correction: Consumption = getattr(term, "correction", "multiplies")

    def token_loss_of_term(batch: RolloutBatch) -> Loss:
        return token_loss("loss", batch, term, correction)

    splits = not getattr(term, "batch_statistics", False)
    return Subject(name, token_loss_of_term, type(term).terms, (batch,), Loss, True, splits, declaration)


def _of_class(name: str, kind: type) -> Iterator[Subject]:
    """A class whose objects are objectives, or are called with a schema: an object with default arguments."""
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
        return
    method = vars(kind).get("__call__")
    is_called = inspect.isfunction(method) and is_interesting(method)
    if not is_called and not inspect.isfunction(getattr(kind, "terms", None)):
        return
    try:
        thing = kind()
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise CannotCheckError(
            f"{kind.__name__}() needs arguments ({first}); give the module an object of it, and that is checked"
        ) from error
    if is_called or _schema_of_terms(thing) is not None:
        yield from _of_object(name, thing, None)
