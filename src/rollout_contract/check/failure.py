"""What an exception on ordinary input says about a function."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout_contract.check.dims import Dims
from rollout_contract.check.findings import Place
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.type_checks import broken_annotation
from rollout_contract.errors import ContractError

_RULE_OF_VIOLATION = {
    "missing": "missing-field",
    "unknown": "missing-field",
    "live graph": "live-input",
    "no graph": "unreached",
    "shape": "shape",
    "length": "shape",
    "dtype": "dtype",
    "device": "device",
    "mutated": "in-place",
    "rows": "split",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that an exception breaks, and what to say about it."""

    rule: str
    finding: Finding


def failure(probe: Probe) -> Failure | None:
    """Why the function does not run on ordinary input; None if it does."""
    first, second = probe.first, probe.second
    failed = first if first.error is not None else second
    if failed.error is None:
        return None
    place = probe.at(line_of_error(failed.error, probe.subject.home))
    if first.error is None or second.error is None:
        if _is_about_sizes(failed.error):
            return Failure("hard-coded-size", _one_size_only(failed, place, first.error is None))
        if _is_about_dtypes(failed.error):
            return Failure("dtype", _wrong_dtype(failed, place))
    return _classify(first if first.error is not None else second, second, place)


def _classify(failed: Outcome, second: Outcome, place: Place) -> Failure:
    error = failed.error
    finding = _from_contract(error, place) or _from_batch(error, place) or _from_types(error, place)
    if finding is None and error is not None and _is_about_sizes(error):
        finding = _from_sizes(failed, second, place)
    if finding is None and error is not None and _is_about_dtypes(error):
        finding = Failure("dtype", _wrong_dtype(failed, place))
    return finding or Failure("raises", Finding(place, "a result on a valid batch", show_error(error)))


def show_error(error: BaseException | None) -> str:
    """The type and the first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__


# -- the kinds -----------------------------------------------------------------------------------------------------


def _from_contract(error: BaseException | None, place: Place) -> Failure | None:
    if not isinstance(error, ContractError):
        return None
    rule = _RULE_OF_VIOLATION.get(error.rule, "raises")
    expected, found = f"{error.field}: {error.expected}", f"{error.found} (in {error.subject})"
    return Failure(rule, Finding(place, expected, found, error.hint))


def _from_batch(error: BaseException | None, place: Place) -> Failure | None:
    """``batch.advantages`` on a schema that has none."""
    if not isinstance(error, AttributeError) or not hasattr(error.obj, "__plan__"):
        return None
    schema = type(error.obj).__name__
    hint = f"annotate the function with a schema that has {error.name}"
    return Failure("missing-field", Finding(place, f"a field of {schema}", f"{error.name}, which it lacks", hint))


def _from_types(error: BaseException | None, place: Place) -> Failure | None:
    """What jaxtyping and beartype say inside a function that carries their decorator."""
    broken = None if error is None else broken_annotation(error)
    if broken is None:
        return None
    hint = "the annotation says what the function relies on"
    return Failure(broken.rule, Finding(place, broken.expected, broken.found, hint))


# -- sizes ---------------------------------------------------------------------------------------------------------

_SIZE_WORDS = ("size", "shape", "dimension", "must match", "out of bounds", "out of range", "expand", "broadcast")
_POSITION = re.compile(r"(?:dim|dimension|at index) (\d+)")
_MEETING = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")


def _is_about_sizes(error: BaseException) -> bool:
    text = str(error).lower()
    is_tensor_error = isinstance(error, RuntimeError | IndexError | ValueError) and not isinstance(error, ContractError)
    return is_tensor_error and any(word in text for word in _SIZE_WORDS) and bool(re.search(r"\d", text))


def _numbers(error: BaseException | None) -> list[int]:
    return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", show_error(error))]


def _one_size_only(failed: Outcome, place: Place, first_works: bool) -> Finding:
    works = "the first" if first_works else "the second"
    name = failed.inputs.setup.sizes.name
    return Finding(place, f"a result for every size, as for {works}", f"with {name}: {show_error(failed.error)}")


def _from_sizes(failed: Outcome, second: Outcome, place: Place) -> Failure:
    """Two sizes that met: both those of dimensions, or one that was written down."""
    dims = failed.inputs.dims
    constant = _written_down(failed, second)
    if constant is not None:
        found = f"{constant}, whatever the input; {_with_names(failed, dims)}"
        return Failure("hard-coded-size", Finding(place, "sizes that follow the input", found))
    if _MEETING.search(str(failed.error)) or "broadcast" in str(failed.error) or "expand" in str(failed.error):
        hint = "bring both to the same dimension first: batch.layout.expand() repeats one entry per sample"
        return Failure("broadcast", Finding(place, "operands of the same dimensions", _with_names(failed, dims), hint))
    return Failure("shape", Finding(place, "shapes that fit", _with_names(failed, dims)))


def _written_down(failed: Outcome, second: Outcome) -> int | None:
    """A number above 1 that is in both messages at the same place and is no size of the input."""
    if second.error is None or second is failed:
        return None
    mine, other = _numbers(failed.error), _numbers(second.error)
    if len(mine) != len(other):
        return None
    known = failed.inputs.dims
    positions = set(map(int, _POSITION.findall(show_error(failed.error))))
    for a, b in zip(mine, other, strict=True):
        if a == b and a > 1 and a not in positions and not known.names(a):
            return a
    return None


def _with_names(failed: Outcome, dims: Dims) -> str:
    """The message, with the name of its dimension behind each size."""
    match = _MEETING.search(str(failed.error))
    if match:
        return f"{dims.label(int(match[1]))} meet {dims.label(int(match[2]))}"
    return re.sub(r"(?<![\w.])\d+(?![\w.])", lambda number: dims.label(int(number[0])), show_error(failed.error))


# -- dtypes --------------------------------------------------------------------------------------------------------


def _is_about_dtypes(error: BaseException) -> bool:
    text = str(error)
    words = ("dtype", "scalar type", "Float", "Double", "Long", "Bool", "bool tensor")
    return isinstance(error, RuntimeError | TypeError) and any(word in text for word in words)


def _wrong_dtype(failed: Outcome, place: Place) -> Finding:
    floats = failed.inputs.setup.floats
    return Finding(place, f"a result for {floats} input, as the annotations allow", show_error(failed.error))
