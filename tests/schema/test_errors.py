"""The tree of errors: their facts, their text, and that they travel."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from rollout_contract import errors
from rollout_contract.errors import ContractError, Violation, counted, raise_violations, violation_error

# Not those of modules that another test has imported.
OWN = [kind for kind in ContractError.__subclasses__() if kind.__module__ == errors.__name__]
KINDS = sorted(OWN, key=lambda kind: kind.__name__)


# -- the tree -------------------------------------------------------------------------------------------------------


def test_the_tree() -> None:
    assert [kind.__name__ for kind in KINDS] == [
        "CorrectionError",
        "DTypeError",
        "DeviceError",
        "FrozenError",
        "LengthError",
        "LiveGraphError",
        "MaskError",
        "MetadataError",
        "MissingFieldError",
        "MutatedError",
        "NoGraphError",
        "NonFiniteError",
        "RowsError",
        "SchemaError",
        "ShapeError",
        "UnknownFieldError",
    ]
    assert all(issubclass(kind, ValueError) for kind in KINDS)
    assert len({kind.rule_name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("name", "stdlib"),
    [
        ("DTypeError", TypeError),
        ("SchemaError", TypeError),
        ("UnknownFieldError", TypeError),
        ("MissingFieldError", AttributeError),
        ("FrozenError", AttributeError),
    ],
)
def test_some_are_what_python_would_raise(name: str, stdlib: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), stdlib)


VIOLATION = Violation("old_log_probs", "shape", "[5 tokens]", "f32[2]", "expand it", 3, 1)


@pytest.mark.parametrize("kind", [ContractError, *KINDS], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_every_error_travels_with_its_facts(kind: type[ContractError], duplicate: Any) -> None:
    error = kind("PolicyBatch", [VIOLATION, Violation("advantages", "mask", "a", "b")])
    same = duplicate(error)
    assert type(same) is kind
    assert str(same) == str(error)
    assert (same.subject, same.violations) == (error.subject, error.violations)
    facts = (same.field, same.rule, same.expected, same.found, same.hint, same.row, same.position)
    assert facts == ("old_log_probs", "shape", "[5 tokens]", "f32[2]", "expand it", 3, 1)
    assert same.args == error.args


def test_one_kind_of_violation_gives_its_error_and_several_give_the_common_one() -> None:
    shape, mask = Violation("a", "shape", "x", "y"), Violation("b", "mask", "x", "y")
    raise_violations("nothing", [])
    with pytest.raises(errors.ShapeError):
        raise_violations("S", [shape, shape])
    with pytest.raises(ContractError) as caught:
        raise_violations("S", iter([shape, mask]))
    assert type(caught.value) is ContractError
    assert type(violation_error("S", mask)) is errors.MaskError


def test_text() -> None:
    assert str(violation_error("Layout", Violation("side", "metadata", "'left' or 'right'", "'up'"))) == (
        "Layout breaks its contract:\n\n  side [metadata]\n    expected  'left' or 'right'\n    found     'up'"
    )
    two = str(ContractError("S", [VIOLATION, Violation("b", "mask", "x", "y", row=2)]))
    assert two == (
        "S breaks its contract in 2 places:\n\n"
        "  old_log_probs [shape], row 3, position 1\n"
        "    expected  [5 tokens]\n"
        "    found     f32[2]\n"
        "    repair    expand it\n\n"
        "  b [mask], row 2\n"
        "    expected  x\n"
        "    found     y"
    )


def test_numbers_agree_with_their_nouns() -> None:
    assert [counted(n, noun) for n in (0, 1, 2) for noun in ("entry", "row")] == [
        *("0 entries", "0 rows"),
        *("1 entry", "1 row"),
        *("2 entries", "2 rows"),
    ]
