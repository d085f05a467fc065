"""From what a caller passes to one packed tensor: ragged rows, lists of numbers, None for a missing value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rollout_contract.errors import Violation
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
    """None, or (for a batch that has samples) an empty list: the producer had nothing to give."""
    if isinstance(value, list | tuple):
        return layout.num_samples > 0 and all(row is None for row in value)
    return value is None


def take_in(spec: FieldSpec, value: Any, layout: Layout, device: torch.device) -> Intake:
    """Turn what was passed for a tensor field into one packed tensor, or say what is wrong with it."""
    if isinstance(value, Tensor):
        return Intake(value.values() if value.is_nested else value)
    if hasattr(value, "__array_interface__"):
        # A copy, because arrays that came through shared memory are read-only and torch would write to them.
        return Intake(torch.tensor(value, device=device))
    if not isinstance(value, list | tuple):
        wrong = Violation(
            spec.name, "shape", "a tensor, or a list with one row per sample", f"a {type(value).__name__}"
        )
        return Intake(None, violations=[wrong])
    lengths = axis_lengths(spec.axis, layout)
    if lengths is None or _is_flat(value):
        return _from_numbers(spec, value, layout, device)
    return _from_rows(spec, value, lengths, device)


def _is_flat(value: Sequence[Any]) -> bool:
    """A packed list of numbers; rows of None alone are rows."""
    return any(_is_number(item) for item in value)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) or (hasattr(item, "__array_interface__") and getattr(item, "ndim", 1) == 0)


def _python_dtype(spec: FieldSpec) -> torch.dtype:
    """The dtype of numbers that come without one."""
    if spec.family == "float":
        return torch.float32 if "float32" in spec.dtypes else getattr(torch, spec.dtypes[0])
    # A mask's rows may hold ints, floats or bools; float32 represents them all, and the wrong ones too.
    return torch.long if spec.family == "int" else torch.float32


def _from_numbers(spec: FieldSpec, values: Sequence[Any], layout: Layout, device: torch.device) -> Intake:
    """One entry per sample or group, or a packed list of numbers."""
    if any(isinstance(item, Tensor) for item in values):
        try:
            return Intake(torch.stack([torch.as_tensor(item) for item in values]))
        except (RuntimeError, TypeError) as error:
            wrong = Violation(spec.name, "shape", "entries of one shape", str(error).splitlines()[0])
            return Intake(None, violations=[wrong])
    missing = [i for i, item in enumerate(values) if item is None]
    if missing and spec.axis != "tokens":
        wrongs = [_none(spec, row, None) for row in missing]
        return Intake(None, violations=wrongs)
    intake = _numbers_to_tensor(spec, [0 if item is None else item for item in values], device, row=None)
    intake.missing = missing
    return intake


def _numbers_to_tensor(spec: FieldSpec, numbers: Sequence[Any], device: torch.device, row: int | None) -> Intake:
    try:
        return Intake(torch.tensor(numbers, dtype=_python_dtype(spec), device=device))
    except (TypeError, ValueError, RuntimeError) as error:
        wrong = Violation(spec.name, "dtype", f"numbers ({spec.family})", str(error).splitlines()[0], row=row)
        return Intake(None, violations=[wrong])


def _from_rows(spec: FieldSpec, rows: Sequence[Any], lengths: tuple[int, ...], device: torch.device) -> Intake:
    """Ragged input is checked row by row: a checker that samples one row misses the wrong one."""
    if len(rows) != len(lengths):
        expected = f"{len(lengths)} rows, one for each sample"
        return Intake(None, violations=[Violation(spec.name, "length", expected, f"{len(rows)} rows")])
    violations = list(_wrong_lengths(spec, rows, lengths))
    if violations:
        return Intake(None, violations=violations)
    missing: list[int] = []
    parts: list[Tensor] = []
    start = 0
    for row, (entries, length) in enumerate(zip(rows, lengths, strict=True)):
        intake = _from_row(spec, entries, length, device, row)
        violations += intake.violations
        missing += [start + position for position in intake.missing]
        parts += [] if intake.tensor is None else [intake.tensor]
        start += length
    violations += _mixed(spec, parts)
    if violations:
        return Intake(None, violations=violations)
    empty = torch.zeros(0, dtype=_python_dtype(spec), device=device)
    return Intake(_concatenate(parts) if parts else empty, missing)


def _concatenate(parts: list[Tensor]) -> Tensor:
    """Join rows; a row without entries takes the trailing dimensions and dtype of the others."""
    full = [part for part in parts if part.shape[0]] or parts[:1]
    return torch.cat(full)


def _wrong_lengths(spec: FieldSpec, rows: Sequence[Any], lengths: tuple[int, ...]) -> Iterator[Violation]:
    unit = "response tokens" if spec.axis == "tokens" else "prompt and response tokens"
    absent = [row for row, entries in enumerate(rows) if entries is None]
    if absent and not spec.holds_log_probs:
        hint = "give the field for every row, or for none"
        yield Violation(spec.name, "missing", "all rows or none", f"no value in rows {absent}", hint, row=absent[0])
    for row, (entries, length) in enumerate(zip(rows, lengths, strict=True)):
        if entries is None:
            continue
        found = entries.shape[0] if getattr(entries, "ndim", 0) else _length_of(entries)
        if found != length:
            hint = _length_hint(spec, found, length)
            yield Violation(spec.name, "length", f"{length} {unit}", f"{found} entries", hint, row=row)


def _length_of(entries: Any) -> int:
    return len(entries) if isinstance(entries, list | tuple) else -1


def _length_hint(spec: FieldSpec, found: int, length: int) -> str:
    if found == -1:
        return "a row is a tensor or a list of numbers"
    if spec.name == "loss_mask" and found < length:
        return "when a response is resumed, the mask must grow with it: 0 for old tokens, 1 for new ones"
    if found == length - 1:
        return (
            "one entry short: this looks like scores that start at the second token. Entry t must score token t "
            "itself; keep the first one (Layout.response_from_predictions converts)"
        )
    if spec.axis == "tokens" and found > length:
        return "a per-token field covers the response alone, without the prompt (Layout.response_from_sequence cuts it)"
    return "cut or extend all per-token fields of a sample together"


def _from_row(spec: FieldSpec, entries: Any, length: int, device: torch.device, row: int) -> Intake:
    if entries is None:
        filler = torch.zeros(length, dtype=_python_dtype(spec), device=device)
        return Intake(filler, missing=list(range(length)))
    if isinstance(entries, Tensor):
        return Intake(entries)
    if hasattr(entries, "__array_interface__"):
        return Intake(torch.tensor(entries, device=device))
    missing = [i for i, item in enumerate(entries) if item is None]
    if missing and not spec.holds_log_probs:
        return Intake(None, violations=[_none(spec, row, position) for position in missing])
    intake = _numbers_to_tensor(spec, [0 if item is None else item for item in entries], device, row)
    intake.missing = missing
    return intake


def _mixed(spec: FieldSpec, parts: list[Tensor]) -> Iterator[Violation]:
    """Rows that cannot be joined: another device, dtype or trailing shape than the first."""
    for row, part in enumerate(parts):
        first = parts[0]
        if part.device != first.device:
            yield Violation(spec.name, "device", f"all rows on {first.device}, as row 0", str(part.device), row=row)
        if part.dtype != first.dtype and part.shape[0] and first.shape[0]:
            yield Violation(spec.name, "dtype", f"all rows {first.dtype}, as row 0", str(part.dtype), row=row)
        if part.shape[1:] != first.shape[1:] and part.shape[0] and first.shape[0]:
            expected = f"trailing dimensions {list(first.shape[1:])}, as row 0"
            yield Violation(spec.name, "shape", expected, str(list(part.shape[1:])), row=row)


def _none(spec: FieldSpec, row: int, position: int | None) -> Violation:
    hint = "only log-probs can be masked out or neutralised; find out why the producer had no value"
    return Violation(spec.name, "value", "a number", "None", hint, row=row, position=position)
