"""What a broken contract looks like: one small tree of exceptions, each with structured facts.

A build reports every violation at once. If all of them break the same kind of rule, the exception is of that
kind (:class:`ShapeError`, :class:`MaskError`, ...); if several kinds are broken together it is a plain
:class:`ContractError` that holds them all. Every exception here is also a :class:`ValueError` and survives pickling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: which field, which rule, what was expected, what was found, where, and the repair."""

    field: str
    rule: str
    expected: str
    found: str
    hint: str = ""
    row: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        place = "" if self.row is None else f", row {self.row}"
        place += "" if self.position is None else f", position {self.position}"
        lines = [
            f"{self.field} [{self.rule}]{place}",
            f"  expected  {self.expected}",
            f"  found     {self.found}",
        ]
        if self.hint:
            lines.append(f"  repair    {self.hint}")
        return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """For example ``1 entry`` or ``2 entries``."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


class ContractError(ValueError):
    """The contract between rollouts and loss is broken.

    Attributes:
        subject: what was being built or checked, for example a schema's name.
        violations: every broken rule, in field order.
        field, rule, expected, found, row, position, hint: the facts of the first violation.
    """

    rule_name: ClassVar[str] = ""

    def __init__(self, subject: str, violations: Iterable[Violation]) -> None:
        self.subject = subject
        self.violations: tuple[Violation, ...] = tuple(violations)
        super().__init__(subject, self.violations)

    @property
    def field(self) -> str:
        return self.violations[0].field

    @property
    def rule(self) -> str:
        return self.violations[0].rule

    @property
    def expected(self) -> str:
        return self.violations[0].expected

    @property
    def found(self) -> str:
        return self.violations[0].found

    @property
    def row(self) -> int | None:
        return self.violations[0].row

    @property
    def position(self) -> int | None:
        return self.violations[0].position

    @property
    def hint(self) -> str:
        return self.violations[0].hint

    def __str__(self) -> str:
        count = len(self.violations)
        places = "" if count == 1 else f" in {count} places"
        body = "\n\n".join(str(violation) for violation in self.violations)
        indented = "\n".join(f"  {line}" if line else "" for line in body.splitlines())
        return f"{self.subject} breaks its contract{places}:\n\n{indented}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.subject, self.violations)


class LiveGraphError(ContractError):
    """A fixed input carries an autograd graph."""

    rule_name = "live graph"


class NoGraphError(ContractError):
    """A trainable input carries no autograd graph although grad mode is on."""

    rule_name = "no graph"


class ShapeError(ContractError):
    """A tensor's dimensions are not those that its field declares."""

    rule_name = "shape"


class LengthError(ContractError):
    """A per-token field does not have one entry per response token of a sample."""

    rule_name = "length"


class DeviceError(ContractError):
    """A field lies on another device than the batch."""

    rule_name = "device"


class DTypeError(ContractError, TypeError):
    """A field has a dtype that its contract does not allow."""

    rule_name = "dtype"


class NonFiniteError(ContractError):
    """A trained token has NaN or an infinity in a field, or a log-prob above zero."""

    rule_name = "value"


class MaskError(ContractError):
    """A mask holds something else than 0 and 1."""

    rule_name = "mask"


class MissingFieldError(ContractError, AttributeError):
    """A field that is needed is absent, not bound yet, or present for some rows only."""

    rule_name = "missing"


class UnknownFieldError(ContractError, TypeError):
    """A name was given that the schema does not have."""

    rule_name = "unknown"


class MutatedError(ContractError):
    """A fixed field was edited in place after it had been validated."""

    rule_name = "mutated"


class FrozenError(ContractError, AttributeError):
    """Somebody tried to assign to, or delete, a field of a batch."""

    rule_name = "frozen"


class RowsError(ContractError):
    """Two things that should describe the same rows describe different ones."""

    rule_name = "rows"


class MetadataError(ContractError):
    """Metadata is invalid or two batches, or two kinds of log-probs, disagree about it."""

    rule_name = "metadata"


class CorrectionError(ContractError):
    """A correction was applied too late, twice, or was consumed by no loss."""

    rule_name = "correction"


class SchemaError(ContractError, TypeError):
    """A schema class is wrong; raised when the class is made."""

    rule_name = "schema"


_ERROR_OF_RULE: dict[str, type[ContractError]] = {kind.rule_name: kind for kind in ContractError.__subclasses__()}


def raise_violations(subject: str, violations: Iterable[Violation]) -> None:
    """Raise one exception for all violations; do nothing when there are none."""
    found = tuple(violations)
    if not found:
        return
    rules = {violation.rule for violation in found}
    kind = _ERROR_OF_RULE[rules.pop()] if len(rules) == 1 else ContractError
    raise kind(subject, found)


def violation_error(subject: str, violation: Violation) -> ContractError:
    """The exception for a single violation, to be raised by the caller."""
    return _ERROR_OF_RULE[violation.rule](subject, (violation,))
