"""What jaxtyping and beartype raise when a function that carries their decorator gets the wrong argument."""

from __future__ import annotations

import re
from typing import NamedTuple

from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

_PARAMETER = re.compile(r"whilst typechecking parameter '(\w+)'")
_EXPECTED = re.compile(r"Expected type: <class '(.*)'>")
_ACTUAL = re.compile(r"Actual value: (\S+?)\(torch\)")
_AXIS = re.compile(r"^(\w+)=(\d+)$", re.MULTILINE)


class BrokenAnnotation(NamedTuple):
    """Which rule an argument breaks, and the two sides of it."""

    rule: str
    expected: str
    found: str


def broken_annotation(error: BaseException) -> BrokenAnnotation | None:
    """None for any other exception."""
    if not isinstance(error, TypeCheckError | BeartypeCallHintViolation):
        return None
    text = str(error)
    parameter, wanted, actual = _PARAMETER.search(text), _EXPECTED.search(text), _ACTUAL.search(text)
    if parameter is None or wanted is None or actual is None:
        first = text.strip().splitlines()[0]
        return BrokenAnnotation("shape", "types as annotated", f"{type(error).__name__}: {first}")
    expected = f"{parameter[1]}: {wanted[1]}"
    if not _has_shape(wanted[1], actual[1], dict(_AXIS.findall(text))):
        return BrokenAnnotation("shape", expected, actual[1])
    if "FixedTensor" in wanted[1]:
        return BrokenAnnotation("live-input", expected, f"{actual[1]}, with a graph")
    if "TrainableTensor" in wanted[1]:
        return BrokenAnnotation("unreached", expected, f"{actual[1]}, without a graph")
    return BrokenAnnotation("dtype", expected, actual[1])


def _has_shape(wanted: str, actual: str, axes: dict[str, str]) -> bool:
    """Whether the sizes are those of the bound axes, so that something else must be wrong."""
    dims = re.findall(r"'([^']*)'", wanted)
    sizes = re.findall(r"\[([\d,]*)\]", actual)
    if not dims or not sizes:
        return True
    found = [size for size in sizes[0].split(",") if size]
    names = dims[-1].split()
    return len(names) == len(found) and all(axes.get(n, s) == s for n, s in zip(names, found, strict=True))
