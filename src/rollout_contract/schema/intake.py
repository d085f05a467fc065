"""From what a caller passes to one packed tensor: ragged rows, lists of numbers, None for a missing value."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rollout_contract.errors import Violation, counted
from rollout_contract.layout import Layout
from rollout_contract.schema.plan import FieldSpec


@dataclass(slots=True)
class Intake:
    """One field on its way in: the tensor, where values were missing, and what was wrong."""

    tensor: Tensor | None
    missing: list[int] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


def axis_lengths(axis: str, layout: Layout) -> tuple[int, ...] | None:
    """Entries of each sample along an axis that is ragged; None for an axis with one entry per sample or group."""
    if axis == "tokens":
        return layout.response_lengths
    return layout.sequence_lengths if axis == "sequence" else None


def is_absent(value: Any, layout: Layout) -> bool:
    """None, nothing but None, or an empty list where entries are due: the producer had nothing to give."""
    if isinstance(value, list | tuple):
        return all(row is None for row in value) and (len(value) > 0 or layout.num_tokens > 0)
    return value is None


def take_in(spec: FieldSpec, value: Any, layout: Layout, device: torch.device) -> Intake:
    """Turn what was passed for a tensor field into one packed tensor, or say what is wrong with it."""
    if isinstance(value, Tensor) and value.is_nested:
        # The total of a nested tensor says nothing about its rows: each is checked like any other row.
        value = list(value.unbind())
    if isinstance(value, Tensor):
        return _dense(spec, value)
    if hasattr(value, "__array_interface__"):
        if value.dtype != object:
            return _from_array(spec, value, device, row=None)
        value = value.tolist()
    if not isinstance(value, list | tuple):
        wrong = Violation(
            spec.name, "shape", "a tensor, or a list with one row per sample", f"a {type(value).__name__}"
        )
        return Intake(None, violations=[wrong])
    lengths = axis_lengths(spec.axis, layout)
    if lengths is None or _is_flat(value, sum(lengths)):
        return _from_numbers(spec, value, layout, device)
    return _from_rows(spec, value, lengths, device)


def _dense(spec: FieldSpec, tensor: Tensor) -> Intake:
    if tensor.layout == torch.strided:
        return Intake(tensor)
    wrong = Violation(spec.name, "shape", "a dense tensor", f"a {tensor.layout} tensor", "pass tensor.to_dense()")
    return Intake(None, violations=[wrong])


def _from_array(spec: FieldSpec, array: Any, device: torch.device, row: int | None) -> Intake:
    """A copy, because arrays that came through shared memory are read-only and torch would write to them."""
    try:
        return Intake(torch.tensor(array, device=device))
    except TypeError:
        wrong = Violation(spec.name, "dtype", f"numbers ({spec.family})", f"an array of {array.dtype}", row=row)
        return Intake(None, violations=[wrong])


def _is_flat(value: Sequence[Any], size: int) -> bool:
    """A packed list of numbers; rows of None alone are rows."""
    return any(_is_number(item) for item in value) or (not value and size == 0)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) or (hasattr(item, "__array_interface__") and getattr(item, "ndim", 1) == 0)


def _python_dtype(spec: FieldSpec) -> torch.dtype:
    """The dtype of numbers that come without one."""
    if spec.family == "bool":
        # A mask's rows may hold ints, floats or bools; float64 represents them all, and the wrong ones too.
        return torch.float64
    dtype: torch.dtype = getattr(torch, spec.usual_dtype)
    return dtype


def _from_numbers(spec: FieldSpec, values: Sequence[Any], layout: Layout, device: torch.device) -> Intake:
    """One entry per sample or group, or a packed list of numbers."""
    if not values:
        return Intake(_empty(spec, device))
    entries, missing = _without_missing(_nan_for_none(values) if spec.allow_nan else values)
    if missing and not spec.may_miss_values:
        return Intake(None, violations=[_none(spec, *_place(spec, layout, index)) for index in missing])
    return _joined(spec, entries, missing, device, row=None)


def _joined(
    spec: FieldSpec, entries: Sequence[Any], missing: list[int], device: torch.device, row: int | None
) -> Intake:
    """One tensor of numbers, or of entries that are tensors and so may carry a graph."""
    are_tensors = any(isinstance(entry, Tensor) for entry in entries)
    intake = _stack(spec, entries, row) if are_tensors else _numbers_to_tensor(spec, entries, device, row)
    intake.missing = missing
    return intake


def _stack(spec: FieldSpec, entries: Sequence[Any], row: int | None) -> Intake:
    try:
        return Intake(torch.stack([torch.as_tensor(entry) for entry in entries]))
    except (RuntimeError, TypeError) as error:
        wrong = Violation(spec.name, "shape", "entries of one shape", str(error).splitlines()[0], row=row)
        return Intake(None, violations=[wrong])


def _place(spec: FieldSpec, layout: Layout, index: int) -> tuple[int, int | None]:
    """Row and position of a packed entry; an axis with one entry per sample or group has no positions."""
    lengths = axis_lengths(spec.axis, layout)
    if lengths is None:
        return index, None
    offsets = list(accumulate(lengths, initial=0))
    row = min(bisect_right(offsets, index), len(lengths)) - 1
    return row, index - offsets[row]


def _without_missing(entries: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """The entries with zeros of the right shape in place of None, and where that was done."""
    missing = [i for i, entry in enumerate(entries) if entry is None or (_is_list(entry) and _holds_none(entry))]
    if not missing:
        return entries, missing
    filled = list(entries)
    zeros = _zeros_like(next((entry for entry in entries if entry is not None), 0))
    for index in missing:
        filled[index] = zeros
    return filled, missing


def _nan_for_none(entries: Sequence[Any]) -> Sequence[Any]:
    """For a field in which NaN is a value, which None then stands for."""
    like = next((entry for entry in entries if entry is not None), math.nan)
    return [_filled(entry, like) for entry in entries]


def _filled(entry: Any, like: Any) -> Any:
    if entry is not None:
        return [_filled(item, math.nan) for item in entry] if _is_list(entry) else entry
    if isinstance(like, Tensor):
        return torch.full_like(like, math.nan, dtype=torch.float32, requires_grad=False)
    return [_filled(None, item) for item in like] if _is_list(like) else math.nan


def _is_list(entry: Any) -> bool:
    return isinstance(entry, list | tuple)


def _holds_none(entries: Sequence[Any]) -> bool:
    return any(entry is None or (_is_list(entry) and _holds_none(entry)) for entry in entries)


def _zeros_like(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        return torch.zeros_like(entry, requires_grad=False)
    return [_zeros_like(item) for item in entry] if _is_list(entry) else 0


def _numbers_to_tensor(spec: FieldSpec, numbers: Sequence[Any], device: torch.device, row: int | None) -> Intake:
    # Integers are not asked for by dtype: torch would cut 1.5 down to 1 without a word.
    dtype = None if spec.family == "int" and len(numbers) else _python_dtype(spec)
    try:
        return Intake(torch.tensor(numbers, dtype=dtype, device=device))
    except (TypeError, ValueError, RuntimeError) as error:
        wrong = Violation(spec.name, "dtype", f"numbers ({spec.family})", str(error).splitlines()[0], row=row)
        return Intake(None, violations=[wrong])


def _from_rows(spec: FieldSpec, rows: Sequence[Any], lengths: tuple[int, ...], device: torch.device) -> Intake:
    """Ragged input is checked row by row: a checker that samples one row misses the wrong one."""
    if len(rows) != len(lengths):
        expected = f"{counted(len(lengths), 'row')}, one for each sample"
        return Intake(None, violations=[Violation(spec.name, "length", expected, counted(len(rows), "row"))])
    violations = list(_wrong_lengths(spec, rows, lengths))
    if violations:
        return Intake(None, violations=violations)
    missing: list[int] = []
    parts: dict[int, Tensor] = {}
    start = 0
    for row, (entries, length) in enumerate(zip(rows, lengths, strict=True)):
        intake = _from_row(spec, entries, length, device, row)
        violations += intake.violations
        missing += [start + position for position in intake.missing]
        parts |= {} if intake.tensor is None else {row: intake.tensor}
        start += length
    violations += _mixed(spec, parts)
    if violations:
        return Intake(None, violations=violations)
    return Intake(_concatenate(parts, lengths, _empty(spec, device)), missing)


def _empty(spec: FieldSpec, device: torch.device) -> Tensor:
    """What lists without any entry become; they cannot say how wide a row is."""
    width = [dim if isinstance(dim, int) else 0 for dim in spec.dims[1:]]
    return torch.zeros(0, *width, dtype=_python_dtype(spec), device=device)


def _concatenate(parts: dict[int, Tensor], lengths: tuple[int, ...], empty: Tensor) -> Tensor:
    """Join rows; one without entries, or without a value, takes trailing dimensions and dtype from the others."""
    given = list(parts.values())
    full = [part for part in given if part.shape[0]]
    like = [*full, *(part for part in given if part.dim() == empty.dim()), empty][0]
    rows = [parts[row] if row in parts else like.new_zeros(n, *like.shape[1:]) for row, n in enumerate(lengths)]
    return torch.cat([row for row in rows if row.shape[0]]) if any(lengths) else like


def _wrong_lengths(spec: FieldSpec, rows: Sequence[Any], lengths: tuple[int, ...]) -> Iterator[Violation]:
    unit = "response token" if spec.axis == "tokens" else "prompt and response token"
    absent = [row for row, entries in enumerate(rows) if entries is None]
    if absent and not spec.may_miss_values:
        hint = "give the field for every row, or for none"
        yield Violation(spec.name, "missing", "all rows or none", f"no value in rows {absent}", hint, row=absent[0])
    for row, (entries, length) in enumerate(zip(rows, lengths, strict=True)):
        if entries is None:
            continue
        if not _is_row(entries):
            hint = "a row is a tensor or a list of numbers"
            yield Violation(spec.name, "length", counted(length, unit), f"a {type(entries).__name__}", hint, row=row)
        elif len(entries) != length:
            hint = _length_hint(spec, len(entries), length)
            yield Violation(spec.name, "length", counted(length, unit), counted(len(entries), "entry"), hint, row=row)


def _is_row(entries: Any) -> bool:
    return isinstance(entries, list | tuple) or bool(getattr(entries, "ndim", 0))


def _length_hint(spec: FieldSpec, found: int, length: int) -> str:
    if spec.name == "loss_mask" and found < length:
        return "when a response is resumed, its mask grows with it: one entry for every token, old and new"
    if found == length - 1:
        return (
            "one entry short: this looks like scores that start at the second token. Entry t must score token t "
            "itself; keep the first one (Layout.response_from_predictions converts)"
        )
    if spec.axis == "tokens" and found > length:
        return "a per-token field covers the response alone, without the prompt (Layout.response_from_sequence cuts it)"
    return "cut or extend all per-token fields of a sample together"


def _from_row(spec: FieldSpec, entries: Any, length: int, device: torch.device, row: int) -> Intake:
    if isinstance(entries, Tensor):
        return Intake(entries)
    if hasattr(entries, "__array_interface__"):
        if entries.dtype != object:
            return _from_array(spec, entries, device, row)
        entries = entries.tolist()
    if entries is None or (length and all(entry is None for entry in entries)):
        if spec.may_miss_values:
            return Intake(None, missing=list(range(length)))
        return Intake(None, violations=[_none(spec, row, None)])
    filled, missing = _without_missing(_nan_for_none(entries) if spec.allow_nan else entries)
    if missing and not spec.may_miss_values:
        return Intake(None, violations=[_none(spec, row, position) for position in missing])
    return _joined(spec, filled, missing, device, row)


def _mixed(spec: FieldSpec, parts: dict[int, Tensor]) -> Iterator[Violation]:
    """Rows that cannot be joined: another device, dtype or trailing shape than the first that has entries."""
    full = {row: part for row, part in parts.items() if part.shape[0]}
    if not full:
        return
    first = next(iter(full))
    like = full[first]
    for row, part in full.items():
        if part.device != like.device:
            yield Violation(
                spec.name, "device", f"all rows on {like.device}, as row {first}", str(part.device), row=row
            )
        if part.dtype != like.dtype:
            yield Violation(spec.name, "dtype", f"all rows {like.dtype}, as row {first}", str(part.dtype), row=row)
        if part.shape[1:] != like.shape[1:]:
            expected = f"trailing dimensions {list(like.shape[1:])}, as row {first}"
            yield Violation(spec.name, "shape", expected, str(list(part.shape[1:])), row=row)


def _none(spec: FieldSpec, row: int, position: int | None) -> Violation:
    hint = "only log-probs can be masked out or neutralised; find out why the producer had no value"
    return Violation(spec.name, "value", "a number", "None", hint, row=row, position=position)
