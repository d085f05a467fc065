"""Shapes: every dimension of every field against the layout and against the other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from rollout_contract.errors import Violation
from rollout_contract.layout import Layout
from rollout_contract.schema.plan import FieldSpec, Plan

SHORT_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def short_dtype(tensor: Tensor) -> str:
    """For example ``f32``, ``bf16``, ``i64``, ``bool``."""
    name = str(tensor.dtype).removeprefix("torch.")
    stem = name.rstrip("0123456789")
    return SHORT_DTYPES.get(stem, stem) + name[len(stem) :]


def axis_size(axis: str, layout: Layout) -> int:
    """How many entries the first dimension of a field has."""
    if axis == "sequence":
        return layout.num_sequence_tokens
    return {"tokens": layout.num_tokens, "batch": layout.num_samples, "groups": layout.num_groups}[axis]


def shape_violations(
    plan: Plan, specs: Sequence[FieldSpec], values: Mapping[str, Any], layout: Layout
) -> Iterator[Violation]:
    """All fields whose shape is not what their annotation says. Named dimensions are bound by the first field.

    A field without entries binds none: lists without any row cannot say how wide a row is.
    """
    bound: dict[str, tuple[int, str]] = {}
    for name, value in values.items():
        if plan[name].is_tensor and value.shape[:1].numel():
            for dim, size in zip(plan[name].dims[1:], value.shape[1:], strict=False):
                if isinstance(dim, str):
                    bound.setdefault(dim, (size, name))
    for spec in specs:
        tensor: Tensor = values[spec.name]
        entries = axis_size(spec.axis, layout)
        expected = [entries, *(_expected(dim, bound if entries else {}) for dim in spec.dims[1:])]
        shape = list(tensor.shape)
        if len(shape) != len(expected) or any(
            want not in (None, size) for want, size in zip(expected, shape, strict=True)
        ):
            hint = _hint(spec, tensor, layout)
            yield Violation(spec.name, "shape", _show(spec, expected, bound), f"{short_dtype(tensor)}{shape}", hint)


def _expected(dim: str | int, bound: Mapping[str, tuple[int, str]]) -> int | None:
    if isinstance(dim, int):
        return dim
    return bound[dim][0] if dim in bound else None


def _show(spec: FieldSpec, expected: Sequence[int | None], bound: Mapping[str, tuple[int, str]]) -> str:
    dims = [
        f"{size} {dim}" if isinstance(dim, str) and size is not None else f"{dim}"
        for dim, size in zip(spec.dims, expected, strict=True)
    ]
    sources = [f"{dim} as in {bound[dim][1]}" for dim in spec.dims[1:] if isinstance(dim, str) and dim in bound]
    note = "" if not sources else f" ({', '.join(s for s in sources if not s.endswith(f' {spec.name}'))})"
    return f"[{', '.join(dims)}]" + (note if note != " ()" else "")


def _hint(spec: FieldSpec, tensor: Tensor, layout: Layout) -> str:
    """The usual mistakes, by the shape that they leave."""
    shape = list(tensor.shape)
    if not shape:
        return "a scalar is never broadcast: give one value per entry"
    if len(shape) == len(spec.dims) + 1 and shape[-1] == 1:
        return "a trailing dimension of 1 broadcasts silently: drop it with .squeeze(-1)"
    if spec.axis == "tokens" and len(shape) == len(spec.dims) + 1 and shape[0] == layout.num_samples:
        return "this looks padded: Layout(response_lengths).pack(tensor) gives the packed form"
    if spec.axis == "batch" and shape[0] == layout.num_tokens:
        return "one value per token where one per sample belongs"
    if spec.axis != "tokens":
        return ""
    if shape[0] == layout.num_samples:
        return "one value per sample where one per token belongs: Layout(response_lengths).expand(tensor) repeats it"
    if shape[0] == layout.num_tokens - layout.num_samples:
        return (
            "one entry short per sample: this looks like scores that start at the second token. Entry t must score "
            "token t itself (Layout.response_from_predictions converts)"
        )
    if layout.prompt_lengths is not None and shape[0] == layout.num_sequence_tokens:
        return "this covers prompts too: Layout.response_from_sequence(tensor) cuts the responses out"
    return "pack the response tokens of all samples end to end, without prompts and padding"
