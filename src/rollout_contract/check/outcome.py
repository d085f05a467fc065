"""What a function returned, taken apart: the loss, other results, metrics, gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rollout_contract.check.inputs import Inputs
from rollout_contract.check.watch import Watch
from rollout_contract.corrections.correction import Correction
from rollout_contract.losses.loss import Loss
from rollout_contract.metrics import Metric, Metrics

Kind = Literal["value", "metric"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One run of a function.

    Attributes:
        inputs: what it got.
        result: what it returned; None if it raised.
        error: what it raised.
        watch: what it did on the way.
        edited: inputs whose values it changed.
    """

    inputs: Inputs
    result: Any
    error: BaseException | None
    watch: Watch
    edited: tuple[str, ...] = ()

    @cached_property
    def loss(self) -> Tensor | None:
        """The scalar that a loss function returns: alone, as a Loss, or first in a tuple."""
        is_tuple = isinstance(self.result, tuple) and not hasattr(self.result, "_fields")
        first: Any = next(iter(self.result), None) if is_tuple else self.result
        if isinstance(first, Loss):
            return first.value
        if isinstance(first, Tensor) and first.dim() == 0 and first.is_floating_point():
            return first
        return None

    @cached_property
    def _parts(self) -> list[tuple[str, Kind, Tensor]]:
        in_mapping: Kind = "metric" if self.loss is not None else "value"
        return [part for part in _walk(self.result, "", "value", in_mapping) if part[2] is not self.loss]

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Tensors beside the loss; the name of a lone one is ``result``."""
        return {name or "result": tensor for name, kind, tensor in self._parts if kind == "value"}

    @cached_property
    def metrics(self) -> dict[str, Tensor]:
        return {name: tensor for name, kind, tensor in self._parts if kind == "metric"}

    @property
    def gradients(self) -> dict[str, Tensor | None]:
        """The gradient of the loss for every input that carries a graph; None where the loss does not reach it."""
        return self._backward[0]

    @property
    def backward_error(self) -> RuntimeError | None:
        """What the backward pass of the loss raises."""
        return self._backward[1]

    @cached_property
    def _backward(self) -> tuple[dict[str, Tensor | None], RuntimeError | None]:
        live = {name: given.leaf for name, given in self.inputs.tensors.items() if given.leaf is not None}
        if self.loss is None or not self.loss.requires_grad or not live:
            return dict.fromkeys(live), None
        try:
            found = torch.autograd.grad(self.loss, list(live.values()), allow_unused=True, retain_graph=True)
        except RuntimeError as error:
            return dict.fromkeys(live), error
        return dict(zip(live, found, strict=True)), None

    def everything(self) -> dict[str, Tensor]:
        """All that a caller can see, by a readable name. Per-token results count on trained tokens alone."""
        found: dict[str, Tensor] = {}
        if self.loss is not None:
            found["the loss"] = self.loss.detach()
            found |= {f"the gradient of {n}": g for n, g in self.gradients.items() if g is not None}
        found |= {self._label(name): self.on_mask(name, tensor) for name, tensor in self.values.items()}
        return found | {f"the metric {name}": tensor.detach() for name, tensor in self.metrics.items()}

    @staticmethod
    def _label(name: str) -> str:
        return "the result" if name == "result" else f"the result {name}"

    def on_mask(self, name: str, tensor: Tensor) -> Tensor:
        """A result without its masked tokens; whole, when it is not per token."""
        mask, tensor = self.inputs.mask, tensor.detach()
        if mask is None or mask.dim() == 0 or tensor.shape[: mask.dim()] != mask.shape:
            return tensor
        return tensor[mask]


def _walk(thing: Any, name: str, kind: Kind, in_mapping: Kind) -> Iterator[tuple[str, Kind, Tensor]]:
    if isinstance(thing, Tensor):
        yield name, kind, thing
    elif isinstance(thing, bool | int | float) and kind == "metric":
        yield name, kind, torch.tensor(float(thing), dtype=torch.float64)
    elif isinstance(thing, Metric):
        yield name, "metric", thing.parts
    elif isinstance(thing, Loss):
        yield f"{name}.value" if name else name, kind, thing.value
        yield from _walk(thing.metrics, "", "metric", "metric")
    elif isinstance(thing, Correction):
        yield from _walk({"weights": thing.weights, "mask": thing.mask}, name, kind, "value")
        yield from _walk(thing.metrics, "", "metric", "metric")
    else:
        for key, item in _items(thing):
            inner = in_mapping if isinstance(thing, Mapping) and not isinstance(thing, Metrics) else kind
            yield from _walk(item, f"{name}.{key}" if name and inner == "value" else str(key), inner, in_mapping)


def _items(thing: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(thing, Mapping):
        yield from thing.items()
    elif hasattr(thing, "_fields"):
        yield from zip(thing._fields, thing, strict=True)
    elif isinstance(thing, tuple | list):
        yield from enumerate(thing)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from ((item.name, getattr(thing, item.name)) for item in dataclasses.fields(thing))
