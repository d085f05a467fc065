"""What a check found: faults with their place, and functions that could not be checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a source file.

    Attributes:
        file: path as the interpreter knows it; empty when there is no source.
        line: from 1; 0 when there is no source.
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule.

    Attributes:
        rule: its name, see ``rollout_contract.check.rules``.
        subject: the function or schema, as ``module:name``.
        place: the offending line where it can be found, else that of the function.
        expected, found: the two sides of the contradiction.
        hint: how to repair it; may be empty.
    """

    rule: str
    subject: str
    place: Place
    expected: str
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A target, a function, or one rule for it, that could not be checked, and why."""

    subject: str
    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a check.

    Attributes:
        faults: sorted by file and line.
        unchecked: what could not be checked.
        checked: the subjects that were, as ``module:name``.
        seconds: how long it took.
    """

    faults: tuple[Fault, ...]
    unchecked: tuple[Unchecked, ...]
    checked: tuple[str, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 clean, 1 faults, 2 no faults but something could not be checked."""
        if self.faults:
            return 1
        return 2 if self.unchecked else 0


class CannotCheckError(Exception):
    """Something cannot be run on synthetic input; the message says why."""
