"""Values of a trainer's dict without graphs, in the containers that they came in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract.configuration import current_settings
from rollout_contract.inference import ordinary_tensors
from rollout_contract.schema.graph import has_overlap
from rollout_contract.schema.plan import FieldSpec

_HALF = (torch.float16, torch.bfloat16)


def carries_graph(value: Any) -> bool:
    """Whether a tensor, or one in a list, has an autograd graph."""
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, list | tuple) and any(map(carries_graph, value))


def as_tensor(value: Any) -> Any:
    """An array with several axes as a tensor; a copy, for arrays may be read-only."""
    if hasattr(value, "__array_interface__") and not isinstance(value, Tensor) and value.ndim > 1:
        return torch.tensor(value)
    return value


def product(factors: list[Any]) -> Any:
    """The product of masks; one without a token axis counts for its whole row."""
    found = factors[0]
    for factor in factors[1:]:
        rank = max(found.dim(), factor.dim())
        found, factor = (mask.reshape(*mask.shape, *(1,) * (rank - mask.dim())) for mask in (found, factor))
        found = found * factor
    return found


def freed(spec: FieldSpec, value: Any) -> Any:
    """The same values, fit for a fixed field; the same object if it was fit.

    A graph is cut, without a copy. What autograd could not save (inference tensors), or would write to several entries
    at once (expanded views), is copied. Half precision becomes float32 where the contract was told to accept it.
    """
    upcast = spec.family == "float" and (spec.upcast or current_settings().half_precision == "upcast")
    with ordinary_tensors():
        return _freed(value, upcast and "float32" in spec.dtypes)


def _freed(value: Any, upcast: bool) -> Any:
    if isinstance(value, Tensor):
        return _freed_tensor(value, upcast)
    if not isinstance(value, list | tuple):
        return value
    rows = [_freed(row, upcast) if isinstance(row, Tensor | list | tuple) else row for row in value]
    return value if all(new is old for new, old in zip(rows, value, strict=True)) else type(value)(rows)


def _freed_tensor(tensor: Tensor, upcast: bool) -> Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_inference() or has_overlap(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.float() if upcast and tensor.dtype in _HALF else tensor
