"""What a batch shows of itself: a repr that never prints values, and a summary that does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rollout_contract.errors import counted
from rollout_contract.roles import Role
from rollout_contract.schema.plan import FieldSpec, Plan
from rollout_contract.schema.shapes import short_dtype
from rollout_contract.schema.state import State


def batch_repr(name: str, plan: Plan, state: State) -> str:
    """One line for each field, such as ``old_log_probs  f32[37 tokens] cpu fixed``."""
    layout = state.layout
    head = f"{name}({counted(layout.num_samples, 'sample')}, {counted(layout.num_tokens, 'token')}, {state.device}"
    rows = [(spec.name, _describe(spec, state)) for spec in plan.values() if spec.is_tensor and _is_shown(spec, state)]
    rows += [(n, _text(state.values[n])) for n, s in plan.items() if s.role is Role.METADATA and n in state.values]
    width = max(len(field) for field, _ in rows)
    lines = [f"  {field:<{width}}  {text}" for field, text in rows]
    return "\n".join([f"{head})" if not state.is_part else f"{head}, part of a step)", *lines])


def _text(metadata: Any) -> str:
    if isinstance(metadata, Mapping):
        return "; ".join(f"{name}: {value}" for name, value in metadata.items())
    return str(metadata)


def _is_shown(spec: FieldSpec, state: State) -> bool:
    return spec.name in state.values or spec.name not in ("loss_weights", "correction_weights")


def _describe(spec: FieldSpec, state: State) -> str:
    if spec.name not in state.values:
        return f"unbound, {spec.role.value}"
    tensor: Tensor = state.values[spec.name]
    return f"{_typed_shape(spec, tensor)} {tensor.device} {spec.role.value}"


def _typed_shape(spec: FieldSpec, tensor: Tensor) -> str:
    dims = (
        f"{size} {dim}" if isinstance(dim, str) else f"{size}"
        for dim, size in zip(spec.dims, tensor.shape, strict=True)
    )
    return f"{short_dtype(tensor)}[{', '.join(dims)}]"


def counts(repairs: Mapping[str, Any]) -> dict[str, int]:
    """What was done to the input, read from the device; nothing where nothing was to be done."""
    found = {name: int(count) for name, count in repairs.items()}
    return {name: count for name, count in found.items() if count}


class FieldSummary(BaseModel):
    """One field; the range is that of the trained tokens (of all entries, for a field that is not per token).

    ``zeros`` counts log-probs of exactly 0 on trained tokens. A probability of 1 is possible; many of them are more
    often placeholders of tokens that the policy did not sample, such as an appended end of sequence.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    role: str
    shape: str
    device: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    zeros: int | None = None


class Summary(BaseModel):
    """What a batch holds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    schema_name: str
    samples: int
    groups: int
    tokens: int
    trained_tokens: int
    untrained_samples: int
    longest_response: int
    fields: tuple[FieldSummary, ...]
    repairs: dict[str, int]

    def __str__(self) -> str:
        lines = [
            f"{self.schema_name}: {counted(self.samples, 'sample')} in {counted(self.groups, 'group')}, "
            f"{counted(self.tokens, 'token')} "
            f"({self.trained_tokens} trained), longest response {self.longest_response}"
        ]
        if self.untrained_samples:
            lines.append(f"  without any trained token: {counted(self.untrained_samples, 'sample')}")
        lines += _table([("field", "role", "shape", "min", "mean", "max"), *map(_row, self.fields)])
        lines += [f"  exactly 0: {f.name} ({counted(f.zeros, 'trained token')})" for f in self.fields if f.zeros]
        lines += [f"  repaired: {name} ({count})" for name, count in self.repairs.items()]
        return "\n".join(lines)


def _row(field: FieldSummary) -> tuple[str, ...]:
    numbers = (field.minimum, field.mean, field.maximum)
    return (field.name, field.role, field.shape, *("" if n is None else f"{n:.4g}" for n in numbers))


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        yield ("  " + "  ".join(left + right)).rstrip()


def summarise(name: str, plan: Plan, state: State) -> Summary:
    """Read the batch's numbers from the device."""
    mask: Tensor = state.values["loss_mask"]
    layout = state.layout
    per_sample = layout.sum(mask.to(torch.float32)) if not mask.is_meta else torch.zeros(layout.num_samples)
    specs = [spec for spec in plan.values() if spec.is_tensor and spec.name in state.values]
    return Summary(
        schema_name=name,
        samples=layout.num_samples,
        groups=layout.num_groups,
        tokens=layout.num_tokens,
        trained_tokens=int(per_sample.sum()),
        untrained_samples=int((per_sample == 0).sum()),
        longest_response=layout.max_length,
        fields=tuple(_summarise_field(spec, state.values[spec.name], mask) for spec in specs),
        repairs=counts(state.repairs),
    )


def _summarise_field(spec: FieldSpec, tensor: Tensor, mask: Tensor) -> FieldSummary:
    shown = FieldSummary(
        name=spec.name, role=spec.role.value, shape=_typed_shape(spec, tensor), device=str(tensor.device)
    )
    if spec.family != "float" or tensor.is_meta:
        return shown
    values = tensor.detach()
    kept = values[mask.to(values.device)] if spec.axis == "tokens" else values
    if not kept.numel():
        return shown
    zeros = (kept == 0).sum().to(kept.dtype)
    minimum, mean, maximum, count = torch.stack([kept.min(), kept.mean(), kept.max(), zeros]).tolist()
    numbers = {"minimum": minimum, "mean": mean, "maximum": maximum}
    return shown.model_copy(update=numbers | {"zeros": int(count) if spec.holds_log_probs else None})
