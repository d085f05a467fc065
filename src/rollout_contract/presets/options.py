"""How a trainer's options are read: every one of them is known, or it is an error."""

from __future__ import annotations

import difflib
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollout_contract.errors import ContractError, Violation
from rollout_contract.presets.recipe import Recipe

Unrelated: TypeAlias = Literal["refuse", "ignore"]
"""What becomes of options of the trainer that do not decide about the loss, such as its learning rate."""


class OptionError(ContractError):
    """Options of a trainer that are unknown, out of range or contradictory, or that this library cannot follow."""

    rule_name = "option"

    def __str__(self) -> str:
        violations = super().__str__().partition("\n")[2]
        return f"{self.subject} cannot be made of these options:\n{violations}"


def contradiction(option: str, found: object, expected: str, hint: str = "") -> Violation:
    """An option that has no effect, or another one, next to the rest."""
    return Violation(option, "contradiction", expected, str(found), hint)


def not_covered(option: str, found: object, why: str, hint: str = "") -> Violation:
    """An option that decides about the loss, and that this library does not follow."""
    return Violation(option, "not covered", f"another value: {why}", str(found), hint)


OptionsT = TypeVar("OptionsT", bound="TrainerOptions")


class TrainerOptions(BaseModel, ABC):
    """The options of one trainer that decide about the loss, with its own names and defaults.

    Attributes:
        trainer: its name.
        version: whose names and defaults these are.
        unrelated: patterns of its other options.
        whole: beginnings of names that may not be shortened.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    trainer: ClassVar[str]
    version: ClassVar[str]
    unrelated: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[tuple[str, ...]] = ()

    def refusals(self) -> Iterator[Violation]:
        """What stands in the way of a recipe: options that contradict each other, or that cannot be followed."""
        yield from ()

    @abstractmethod
    def recipe(self) -> Recipe:
        """What the options mean, if there are no refusals."""

    @classmethod
    def names(cls) -> dict[str, str]:
        """Full option name -> field."""
        return {info.alias or field: field for field, info in cls.model_fields.items()}

    @classmethod
    def read(cls: type[OptionsT], options: Mapping[str, Any], unrelated: Unrelated = "refuse") -> OptionsT:
        """The options by the trainer's own names.

        Nested mappings and dotted names are the same; a dotted name may be shortened from the left; ``--``, and ``-``
        for ``_``, are those of a command line.

        Raises:
            OptionError: with every wrong option.
        """
        given, violations = cls._resolved(flatten(options), unrelated)
        subject = f"preset({cls.trainer!r})"
        try:
            found = cls.model_validate(given)
        except ValidationError as error:
            violations += [_violation(cls, detail) for detail in error.errors(include_url=False)]
            raise OptionError(subject, violations) from None
        violations = violations or list(found.refusals())
        if violations:
            raise OptionError(subject, violations)
        return found

    @classmethod
    def _resolved(cls, options: Mapping[str, Any], unrelated: Unrelated) -> tuple[dict[str, Any], list[Violation]]:
        given: dict[str, Any] = {}
        violations: list[Violation] = []
        for option, value in options.items():
            names = [name for name in cls.names() if matches(option, name, cls.whole)]
            if len(names) != 1:
                ignored = not names and unrelated == "ignore" and cls._is_unrelated(option)
                violations += [] if ignored else [cls._unresolved(option, names)]
            elif names[0] in given:
                violations.append(Violation(names[0], "twice", "one value", "two spellings of it"))
            else:
                given[names[0]] = value
        return given, violations

    @classmethod
    def _is_unrelated(cls, option: str) -> bool:
        return any(fnmatchcase(normal(option), pattern) for pattern in cls.unrelated)

    @classmethod
    def _unresolved(cls, option: str, names: list[str]) -> Violation:
        known = f"an option of {cls.trainer} ({cls.version}) that decides about the loss"
        if names:
            return Violation(option, "ambiguous", "a name that means one option", " or ".join(names))
        if cls._is_unrelated(option):
            hint = 'leave it out, or say preset(..., unrelated="ignore")'
            return Violation(option, "unrelated", known, "one that does not", hint)
        endings = {name.split(".")[-1]: name for name in cls.names()}
        close = difflib.get_close_matches(normal(option).split(".")[-1], endings, n=3)
        hint = f"did you mean {' or '.join(endings[name] for name in close)}?" if close else f"there are: {listed(cls)}"
        return Violation(option, "unknown", known, "a name that is not known", hint)


def option(name: str, default: Any, **constraints: Any) -> Any:
    """An option of a ``TrainerOptions`` class whose name is not that of its field, such as a dotted one."""
    return Field(default, alias=name, **constraints)


def normal(option: str) -> str:
    """An option's name as it stands in a configuration file."""
    return option.removeprefix("--").replace("-", "_")


def matches(option: str, name: str, whole: tuple[str, ...] = ()) -> bool:
    """Whether ``option`` is the full name, or, where it may be shortened, an ending of it."""
    short, parts = normal(option).split("."), name.split(".")
    return parts == short or (not name.startswith(whole or "\0") and parts[-len(short) :] == short)


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        name = f"{prefix}{key}"
        found |= flatten(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def listed(options: type[TrainerOptions]) -> str:
    return ", ".join(sorted(name.split(".")[-1] for name in options.names()))


def choices(options: type[TrainerOptions], name: str) -> Iterator[str]:
    """The values that an option may have, where they are a list."""

    def literals(annotation: Any) -> Iterator[Any]:
        if typing.get_origin(annotation) is Literal:
            yield from typing.get_args(annotation)
        for part in typing.get_args(annotation) if typing.get_origin(annotation) is not Literal else ():
            yield from literals(part)

    info = options.model_fields[options.names()[name]]
    yield from (str(value) for value in literals(info.annotation))


def _violation(options: type[TrainerOptions], detail: Any) -> Violation:
    name = str(detail["loc"][0]) if detail["loc"] else options.trainer
    allowed = list(choices(options, name)) if name in options.names() else []
    found = repr(detail["input"])
    if not allowed:
        return Violation(name, "value", detail["msg"], found)
    close = difflib.get_close_matches(str(detail["input"]), allowed, n=1)
    return Violation(name, "value", " | ".join(allowed), found, f"did you mean {close[0]}?" if close else "")
