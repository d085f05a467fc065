"""Watching a function while it runs: which line edits an input, broadcasts, loses precision, or makes a NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rollout_contract.check.findings import Place
from rollout_contract.check.lines import line_of_call
from rollout_contract.schema.plan import HALF_PRECISION

_ARITHMETIC = {
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "floordiv")
    for prefix, suffix in (("", ""), ("__", "__"), ("__r", "__"))
} | {"subtract", "multiply", "divide", "true_divide", "maximum", "minimum", "rsub"}

_HALF = tuple(getattr(torch, name) for name in HALF_PRECISION)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Two operands of which neither had the shape of the result."""

    place: Place | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[int, ...]


class Watch(TorchFunctionMode):
    """Notes what the tensor operations of a function do.

    Attributes:
        edits: input name -> the first line that edited it in place.
        broadcasts: outer products of a dimension with itself that nobody wrote as such.
        half: the first line that turned full precision into half, and the dtype.
        not_finite: the first line that made a NaN or an infinity out of finite numbers.
    """

    def __init__(self, inputs: Mapping[str, Tensor], home: str) -> None:
        super().__init__()
        self._home = home
        self._inputs = {name: tensor for name, tensor in inputs.items() if not tensor.is_inference()}
        self._versions = {name: tensor._version for name, tensor in self._inputs.items()}
        self.edits: dict[str, Place | None] = {}
        self.broadcasts: list[Broadcast] = []
        self.half: tuple[Place | None, torch.dtype] | None = None
        self.not_finite: Place | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        if name in ("__get__", "size", "dim", "numel"):
            return result
        place = line_of_call(self._home, depth=2)
        if name.endswith("_") or "out" in (kwargs or {}):
            self._note_edits(place)
        operands = [item for item in args if isinstance(item, Tensor)]
        if isinstance(result, Tensor):
            self._note_result(name, operands, result, place)
        return result

    def _note_edits(self, place: Place | None) -> None:
        for name, tensor in self._inputs.items():
            if tensor._version != self._versions[name]:
                self._versions[name] = tensor._version
                self.edits.setdefault(name, place)

    def _note_result(self, name: str, operands: list[Tensor], result: Tensor, place: Place | None) -> None:
        if name in _ARITHMETIC and len(operands) == 2:
            self._note_broadcast(operands[0], operands[1], result, place)
        if result.dtype in _HALF and self.half is None and any(_is_full(operand) for operand in operands):
            self.half = place, result.dtype
        is_new = self.not_finite is None and _has_values(result) and not _all_finite([result])
        if is_new and _all_finite(operands):
            self.not_finite = place

    def _note_broadcast(self, left: Tensor, right: Tensor, result: Tensor, place: Place | None) -> None:
        """[n, 1] with [n]: the operand of lower rank was silently turned into a row."""
        if left.dim() == right.dim() or result.shape in (left.shape, right.shape) or not result.is_floating_point():
            return
        sizes = [size for size in result.shape if size > 1]
        if len(sizes) != len(set(sizes)):
            shapes = tuple(left.shape), tuple(right.shape)
            self.broadcasts.append(Broadcast(place, shapes, tuple(result.shape)))


def _is_full(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype not in _HALF


def _has_values(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not tensor.is_meta


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor.detach()).all()) for tensor in tensors if _has_values(tensor))


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Iterator[str]:
    """Names of tensors whose values differ: an edit through numpy leaves the version counter as it was."""
    for name, tensor in before.items():
        if not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(after[name].detach())):
            yield name
