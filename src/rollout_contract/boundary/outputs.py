"""What a loss function returns: the loss stays live, everything else comes back without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from rollout_contract.losses.loss import Loss

OutputT = TypeVar("OutputT")


def with_dead_metrics(output: OutputT) -> OutputT:
    """The loss, and metrics without graphs.

    The loss is the output itself, the first entry of a tuple, or what is called ``loss`` in a mapping or a dataclass.
    """
    if isinstance(output, Tensor | Loss):
        return output
    rebuilt: OutputT = _rebuilt(output, spared="loss", first=True)
    return rebuilt


def _rebuilt(value: Any, spared: str = "", first: bool = False) -> Any:
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, Mapping):
        new = {key: entry if key == spared else _rebuilt(entry) for key, entry in value.items()}
        return value if _same(new, value) else _as(type(value), new)
    if isinstance(value, tuple | list):
        rows = [entry if first and index == 0 else _rebuilt(entry) for index, entry in enumerate(value)]
        if all(new is old for new, old in zip(rows, value, strict=True)):
            return value
        return type(value)(*rows) if hasattr(value, "_fields") else type(value)(rows)
    if is_dataclass(value) and not isinstance(value, type | Loss):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: entry if name == spared else _rebuilt(entry) for name, entry in old.items()}
        return value if _same(new, old) else replace(value, **new)
    return value


def _same(new: Mapping[Any, Any], old: Mapping[Any, Any]) -> bool:
    return all(new[key] is old[key] for key in new)


def _as(kind: type[Any], entries: dict[Any, Any]) -> Any:
    return entries if kind is dict else kind(entries)
