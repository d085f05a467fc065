"""Results have the shape that the annotation promises; a loss is one number."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from torch import Tensor

from rollout_contract.check.dims import ArraySpec, array_spec
from rollout_contract.check.failure import failure
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.corrections.correction import Correction
from rollout_contract.losses.loss import Loss

EXPLAINS = ("edge-shape", "split", "permutation")


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "shape":
        yield found.finding
    if not probe.runs:
        return
    yield from _wrong_types(probe)
    for name, dims, actual in wrong(probe.first, probe.subject.returns):
        sizes = probe.first.inputs.dims
        yield Finding(probe.subject.place, f"{name} of shape [{' '.join(dims)}]", sizes.show(actual))
    if probe.subject.declared and probe.first.loss is None:
        yield Finding(probe.subject.place, "a loss: one number", _describe(probe.first.result))
    elif probe.first.loss is not None and probe.first.loss.dim():
        shown = probe.first.inputs.dims.show(probe.first.loss.shape)
        yield Finding(probe.subject.place, "a loss: one number", f"a tensor of shape {shown}")


def _wrong_types(probe: Probe) -> Iterator[Finding]:
    """A result of another type than one of this library's that the annotation promises."""
    returns, result = probe.subject.returns, probe.first.result
    for kind in (Loss, Correction):
        if returns is kind and not isinstance(result, kind):
            yield Finding(probe.subject.place, f"a {kind.__name__}", _describe(result))
    spec = array_spec(returns)
    if spec is not None and not isinstance(result, Tensor):
        yield Finding(probe.subject.place, f"a tensor: {spec}", _describe(result))


def _describe(result: Any) -> str:
    shape = f" of shape {list(result.shape)}" if isinstance(result, Tensor) else ""
    return f"a {type(result).__name__}{shape}"


def wrong(outcome: Outcome, annotation: Any) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """Results whose shape is not as annotated: name, dimensions, what was found."""
    for name, spec, tensor in annotated_results(annotation, outcome.result, "the result"):
        if spec.dims is not None and not outcome.inputs.dims.accepts(spec.dims, tensor.shape):
            yield name, spec.dims, tuple(tensor.shape)


def annotated_results(annotation: Any, result: Any, name: str) -> Iterator[tuple[str, ArraySpec, Tensor]]:
    """Every tensor of a result together with what the annotation says about it."""
    spec = array_spec(annotation) if annotation is not inspect.Signature.empty else None
    if isinstance(result, Tensor):
        if spec is not None:
            yield name, spec, result
        return
    for key, inner, item in _members(annotation, result):
        yield from annotated_results(inner, item, f"{name}[{key!r}]" if isinstance(key, str | int) else name)


def _members(annotation: Any, result: Any) -> Iterator[tuple[Any, Any, Any]]:
    arguments = get_args(annotation)
    if isinstance(result, Mapping):
        inner = arguments[1] if len(arguments) == 2 else None
        yield from ((key, inner, item) for key, item in result.items())
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        hints = _hints(type(result))
        yield from ((key, hints.get(key), getattr(result, key)) for key in getattr(result, "_fields", ()))
    elif isinstance(result, tuple | list):
        is_uniform = get_origin(annotation) is list or (len(arguments) == 2 and arguments[1] is ...)
        for index, item in enumerate(result):
            inner = arguments[0] if is_uniform else arguments[index] if index < len(arguments) else None
            yield index, inner, item
    elif dataclasses.is_dataclass(result) and not isinstance(result, type | Loss | Correction):
        hints = _hints(type(result))
        names = [item.name for item in dataclasses.fields(result)]
        yield from ((name, hints.get(name), getattr(result, name)) for name in names)


def _hints(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}
