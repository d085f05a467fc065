"""Cutting and joining batches: every axis of every field, in this one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rollout_contract.aggregation import PADDING_ROW_ID
from rollout_contract.errors import Violation, counted, raise_violations, violation_error
from rollout_contract.inference import ordinary_tensors
from rollout_contract.layout import Layout
from rollout_contract.roles import Role
from rollout_contract.schema.narrowing import narrowed, narrowing_violations
from rollout_contract.schema.plan import FieldSpec, Plan
from rollout_contract.schema.state import LAYOUT_FIELDS, State, seal

if TYPE_CHECKING:
    from rollout_contract.corrections import Correction

_FILLER = {"row_ids": PADDING_ROW_ID, "group_ids": PADDING_ROW_ID, "response_lengths": 0, "prompt_lengths": 0}


def replace(plan: Plan, state: State, values: Mapping[str, Any]) -> State:
    """The state with other values over the same rows, sealed anew."""
    return State(values, state.layout, state.device, seal(plan, values), state.repairs, state.is_part)


# -- selecting -----------------------------------------------------------------------------------------------------


def row_indices(subject: str, rows: Any, size: int) -> list[int]:
    """Host indices from one index, from indices or from a bool mask; negative ones count from the end."""
    plain = rows.tolist() if hasattr(rows, "tolist") else rows
    entries = [_plain(row) for row in (plain if isinstance(plain, Iterable) else [plain])]
    if entries and all(isinstance(row, bool) for row in entries):
        if len(entries) != size:
            wrong = Violation("rows", "length", f"a mask over {size} samples", counted(len(entries), "entry"))
            raise violation_error(subject, wrong)
        return [index for index, keep in enumerate(entries) if keep]
    for row in entries:
        if isinstance(row, bool) or not isinstance(row, int):
            wrong = Violation("rows", "rows", "indices of samples, or a bool mask over them", repr(row))
            raise violation_error(subject, wrong)
        if not -size <= row < size:
            wrong = Violation("rows", "rows", f"an index below {size}", str(row))
            raise IndexError(str(violation_error(subject, wrong)))
    return [row % size for row in entries]


def _plain(row: Any) -> Any:
    return row.item() if hasattr(row, "item") else row


Span: TypeAlias = tuple[int, int]


@ordinary_tensors()
def select(plan: Plan, state: State, rows: Sequence[int]) -> State:
    """The state of these samples, in this order."""
    layout = state.layout.select(rows)
    axes = {plan[name].axis for name, value in state.values.items() if isinstance(value, Tensor)}
    spans = {axis: _spans(axis, state.layout, layout, rows) for axis in axes}
    values = {name: _cut(plan[name], value, spans, rows) for name, value in state.values.items()}
    is_part = state.is_part or sorted(rows) != list(range(state.layout.num_samples))
    return State(values, layout, state.device, seal(plan, values), state.repairs, is_part)


def _cut(spec: FieldSpec, value: Any, spans: Mapping[str, Sequence[Span]], rows: Sequence[int]) -> Any:
    if spec.role is Role.PER_SAMPLE:
        return tuple(value[row] for row in rows)
    return _take(value, spans[spec.axis]) if spec.is_tensor else value


def _spans(axis: str, old: Layout, new: Layout, rows: Sequence[int]) -> list[Span]:
    """Where the entries of these samples lie along an axis; neighbours are one span."""
    if axis == "groups":
        index = {group: i for i, group in enumerate(old.groups)}
        kept = [index[group] for group in new.groups] if old.group_ids is not None else rows
        return _joined((i, i + 1) for i in kept)
    if axis == "batch":
        return _joined((row, row + 1) for row in rows)
    offsets = old.offsets if axis == "tokens" else tuple(accumulate(old.sequence_lengths, initial=0))
    return _joined((offsets[row], offsets[row + 1]) for row in rows)


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _take(tensor: Tensor, spans: Sequence[Span]) -> Tensor:
    """A view where that is possible, a copy otherwise."""
    parts = [tensor.narrow(0, start, end - start) for start, end in spans] or [tensor.narrow(0, 0, 0)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def cuts(subject: str, layout: Layout, samples: int | None, max_tokens: int | None) -> Iterator[tuple[int, int]]:
    """Spans of consecutive samples: at most ``samples`` of them, or at most ``max_tokens`` tokens."""
    if (samples is None) == (max_tokens is None) or (samples or max_tokens or 0) < 1:
        wrong = Violation("split", "metadata", "samples=... or max_tokens=..., at least 1", f"{samples}, {max_tokens}")
        raise violation_error(subject, wrong)
    if layout.num_samples == 0:
        return iter([(0, 0)])
    if samples is not None:
        return iter([(s, min(s + samples, layout.num_samples)) for s in range(0, layout.num_samples, samples)])
    lengths = layout.response_lengths if layout.prompt_lengths is None else layout.sequence_lengths
    return iter(_cuts_by_tokens(subject, lengths, max_tokens or 0))


def _cuts_by_tokens(subject: str, lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    hint = "raise max_tokens, or drop or truncate the sample"
    raise_violations(
        subject,
        [
            Violation("split", "length", f"at most max_tokens={max_tokens} tokens", str(length), hint, row=row)
            for row, length in enumerate(lengths)
            if length > max_tokens
        ],
    )
    spans, start, used = [], 0, 0
    for row, length in enumerate(lengths):
        if used + length > max_tokens:
            spans.append((start, row))
            start, used = row, 0
        used += length
    return [*spans, (start, len(lengths))]


# -- joining -------------------------------------------------------------------------------------------------------


@ordinary_tensors()
def concat(subject: str, plan: Plan, states: Sequence[State]) -> State:
    """All samples of all states; all of them have a field, or none."""
    if not states:
        raise violation_error(subject, Violation("batches", "missing", "at least one batch", "none"))
    raise_violations(subject, _conflicts(plan, states))
    names = [name for name in plan if name in states[0].values]
    values = {name: _join(plan[name], [state.values[name] for state in states]) for name in names}
    layout = Layout(**{name: values[name] for name in LAYOUT_FIELDS if name in values})
    for name in names:
        if plan[name].axis == "groups" and layout.group_ids is not None:
            values[name] = _join_groups(subject, name, states, layout)
    repairs: dict[str, Any] = {}
    for state in states:
        for name, count in state.repairs.items():
            repairs[name] = repairs.get(name, 0) + count
    is_part = any(state.is_part for state in states)
    return State(values, layout, states[0].device, seal(plan, values), repairs, is_part)


def _conflicts(plan: Plan, states: Sequence[State]) -> Iterator[Violation]:
    first = states[0]
    lost = dict.fromkeys(name for state in states for name in state.values if name not in plan)
    hint = "call concat of the schema that the batches have"
    yield from (Violation(name, "schema", "a schema that keeps every field", f"no {name}", hint) for name in lost)
    for name, spec in plan.items():
        lacking = [index for index, state in enumerate(states) if name not in state.values]
        if lacking and len(lacking) < len(states):
            hint = "give the field to every batch, or to none"
            yield Violation(name, "missing", "the field in all batches or none", f"none in batches {lacking}", hint)
        elif not lacking and spec.is_tensor:
            yield from _misfits(spec, [state.values[name] for state in states])
        elif not lacking and spec.role is Role.METADATA:
            values = [state.values[name] for state in states]
            if not all(_equal(values[0], value) for value in values[1:]):
                found = " and ".join(dict.fromkeys(map(repr, values)))
                yield Violation(name, "metadata", "equal metadata in all batches", found)
    for index, state in enumerate(states):
        if state.device != first.device:
            yield Violation(f"batch {index}", "device", f"{first.device}, as batch 0", str(state.device), "use to()")
    full = [state for state in states if state.layout.num_samples]
    aggregation = first.values.get("aggregation")
    if aggregation is not None and aggregation.is_local and len(full) > 1 and not all(s.is_part for s in full):
        hint = "call concat() first, then weighted()"
        found = "whole steps, each with weights of its own"
        yield Violation("loss_weights", "rows", "parts of one weighted step", found, hint)


def _misfits(spec: FieldSpec, tensors: Sequence[Tensor]) -> Iterator[Violation]:
    """Tensors that cannot be joined with the first one that has entries."""
    full = {index: tensor for index, tensor in enumerate(tensors) if tensor.shape[0]}
    first = next(iter(full), 0)
    like = tensors[first]
    for index, tensor in full.items():
        place = f"as in batch {first}"
        if tensor.shape[1:] != like.shape[1:]:
            expected = f"trailing dimensions {list(like.shape[1:])}, {place}"
            yield Violation(spec.name, "shape", expected, f"{list(tensor.shape[1:])} in batch {index}")
        if tensor.dtype != like.dtype:
            yield Violation(spec.name, "dtype", f"{like.dtype}, {place}", f"{tensor.dtype} in batch {index}")
        if spec.any_device and tensor.device != like.device:
            yield Violation(spec.name, "device", f"{like.device}, {place}", f"{tensor.device} in batch {index}")


def _join(spec: FieldSpec, values: Sequence[Any]) -> Any:
    if spec.role is Role.PER_SAMPLE:
        return tuple(item for value in values for item in value)
    if not spec.is_tensor:
        return values[0]
    full = [value for value in values if value.shape[0]]
    return torch.cat(full) if full else values[0]


def _join_groups(subject: str, name: str, states: Sequence[State], layout: Layout) -> Tensor:
    """One row for each group; a group that several batches hold must have the same row in all of them."""
    rows: dict[int, Tensor] = {}
    for state in states:
        for group, row in zip(state.layout.groups, state.values[name], strict=True):
            if group in rows and not torch.equal(rows[group], row):
                found = f"different values for group {group}"
                raise violation_error(subject, Violation(name, "metadata", "one value for each group", found))
            rows[group] = row
    return torch.stack([rows[group] for group in layout.groups]) if rows else states[0].values[name]


def merged_fields(subject: str, mine: State, theirs: State) -> dict[str, Any]:
    """What the other batch adds, if it is about the same rows in the same order."""
    if mine.values["row_ids"] != theirs.values["row_ids"]:
        hint = "select() the rows of one into the order of the other, or give both the same row_ids when they are built"
        different = Violation("row_ids", "rows", _short(mine.values["row_ids"]), _short(theirs.values["row_ids"]), hint)
        raise violation_error(subject, different)
    shared = [name for name in theirs.values if name in mine.values and name != "sampling"]
    raise_violations(
        subject,
        [
            Violation(name, "metadata", "the same value in both batches", "different ones")
            for name in shared
            if not _equal(mine.values[name], theirs.values[name])
        ],
    )
    added = {name: value for name, value in theirs.values.items() if name not in shared}
    known = mine.values.get("sampling", {})
    if "sampling" in added:
        added["sampling"] = {n: made for n, made in added["sampling"].items() if known.get(n) != made}
    return added


def _short(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"rows {shown}{', ...' if len(ids) > 8 else ''}"


def _equal(mine: Any, theirs: Any) -> bool:
    """NaN equals itself: a batch that is merged with its own copy is no conflict."""
    return _close(mine, theirs, 0.0, 0.0)


def _close(mine: Any, theirs: Any, rtol: float, atol: float) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        dtype = torch.promote_types(mine.dtype, theirs.dtype)
        theirs = theirs.to(mine.device, dtype)
        return mine.shape == theirs.shape and torch.allclose(mine.to(dtype), theirs, rtol, atol, equal_nan=True)
    if hasattr(mine, "__array_interface__"):
        return _equal(mine.tolist(), getattr(theirs, "tolist", lambda: theirs)())
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return mine.keys() == theirs.keys() and all(_equal(value, theirs[key]) for key, value in mine.items())
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_equal, mine, theirs))
    return bool(mine == theirs) or bool(mine != mine and theirs != theirs)


def allclose(mine: State, theirs: State, rtol: float, atol: float) -> bool:
    """Whether two states hold the same fields with the same values, to rounding."""

    same = set(mine.values) == set(theirs.values)
    return same and all(_close(value, theirs.values[name], rtol, atol) for name, value in mine.values.items())


# -- corrections ---------------------------------------------------------------------------------------------------


@ordinary_tensors()
def correct(subject: str, plan: Plan, state: State, correction: Correction, keep_denominators: bool) -> State:
    """Attach a correction's weights and mask; weights of the loss that exist already are computed anew, or kept."""
    raise_violations(subject, _correction_violations(state, correction, keep_denominators))
    values = dict(state.values)
    if correction.weights is not None:
        values["correction_weights"] = correction.weights
    if correction.mask is not None and keep_denominators:
        values["loss_mask"] = values["loss_mask"] & correction.mask
    elif correction.mask is not None:
        values |= narrowed(values, state.layout, correction.mask)
    return replace(plan, state, values)


def _correction_violations(state: State, correction: Correction, keep_denominators: bool) -> Iterator[Violation]:
    if correction.row_ids != state.values["row_ids"]:
        hint = "make the correction from this batch, before it is split or reordered"
        yield Violation("correction", "rows", _short(state.values["row_ids"]), _short(correction.row_ids), hint)
    if correction.weights is not None and "correction_weights" in state.values:
        hint = "combine the corrections into one before applying it"
        yield Violation("correction_weights", "correction", "a batch without correction weights", "a second set", hint)
    for name, tensor in (("weights", correction.weights), ("mask", correction.mask)):
        if tensor is not None and tensor.device != state.device:
            hint = "make the correction after moving the batch"
            yield Violation(
                f"correction {name}", "device", f"{state.device}, where the batch is", f"{tensor.device}", hint
            )
    if keep_denominators and "loss_weights" not in state.values:
        hint = "call weighted() first: its weights are the ones to keep"
        yield Violation("loss_weights", "correction", "weights of the loss, to be kept", "none yet", hint)
    elif correction.mask is not None and not keep_denominators:
        yield from narrowing_violations(state.values, state.is_part)


# -- the rest ------------------------------------------------------------------------------------------------------


@ordinary_tensors()
def pad_to(subject: str, plan: Plan, state: State, num_samples: int) -> State:
    """Append samples without tokens. Every field gets its rows, so nothing is dropped when parts are joined."""
    extra = num_samples - state.layout.num_samples
    if extra < 0:
        wrong = Violation("num_samples", "rows", f"at least {state.layout.num_samples}", str(num_samples))
        raise violation_error(subject, wrong)
    nothing = [n for n, v in state.values.items() if plan[n].role is Role.PER_SAMPLE and not v and n not in _FILLER]
    if extra and nothing:
        hint = "padding repeats the last sample's value, and there is no sample"
        raise violation_error(subject, Violation(nothing[0], "metadata", "a value to repeat", "none", hint))
    values = {name: _padded(plan[name], name, value, state.layout, extra) for name, value in state.values.items()}
    layout = Layout(**{name: values[name] for name in LAYOUT_FIELDS if name in values})
    return State(values, layout, state.device, seal(plan, values), state.repairs, state.is_part)


def _padded(spec: FieldSpec, name: str, value: Any, layout: Layout, extra: int) -> Any:
    if spec.role is Role.PER_SAMPLE:
        return value + ((_FILLER[name],) if name in _FILLER else value[-1:]) * extra
    rows = extra if spec.axis == "batch" else 0
    if spec.axis == "groups":
        rows = extra if layout.group_ids is None else min(extra, 1)
    if not spec.is_tensor or not rows:
        return value
    return torch.cat([value, value.new_zeros(rows, *value.shape[1:])])


@ordinary_tensors()
def to_device(plan: Plan, state: State, device: torch.device) -> State:
    """Blocking copies: a host copy that is read before it has arrived would be garbage without an error."""
    values = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in state.values.items()}
    places = {value.device for value in values.values() if isinstance(value, Tensor)}
    home = places.pop() if len(places) == 1 else device
    return State(values, state.layout, home, seal(plan, values), state.repairs, state.is_part)


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that can be sent: a view would drag the whole storage of its step along."""
    return {name: _sendable(value) for name, value in values.items()}


def _sendable(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    return value.clone() if isinstance(value, Tensor) else value
