"""Replacing what lies at masked-out tokens, before any arithmetic sees it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def zero_outside(values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*mask"]) -> Shaped[Tensor, "*dims"]:
    """``values`` where ``mask`` is True, exactly 0 elsewhere, whatever lies there; ``mask`` broadcasts.

    The gradient is the upstream one inside the mask and exactly 0 outside.
    """
    if values.device.type != "cpu" or values.dtype not in _BITS:
        return torch.where(mask, values, values.new_zeros(()))
    if values.requires_grad:
        found: Tensor = _ZeroOutside.apply(values, mask)  # type: ignore[no-untyped-call]
        return found
    return _select_bits(values, mask)


def fill_outside(values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*mask"], fill: float) -> Shaped[Tensor, "*dims"]:
    """Like :func:`zero_outside` with another number; without a gradient."""
    values = values.detach()
    if values.device.type != "cpu" or values.dtype not in _BITS:
        return torch.where(mask, values, fill)
    filler = torch.full((), fill, dtype=values.dtype).view(_BITS[values.dtype])
    kept = _select_bits(values, mask).view(_BITS[values.dtype])
    return (kept | (filler & (mask.to(filler.dtype) - 1))).view(values.dtype)


def _select_bits(values: Tensor, mask: Tensor) -> Tensor:
    """On a CPU ``torch.where`` is not vectorised; a bitwise and of the same bits is, and is over ten times faster."""
    integer = _BITS[values.dtype]
    return (values.view(integer) & mask.to(integer).neg_()).view(values.dtype)


class _ZeroOutside(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor) -> Tensor:
        return _select_bits(values, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (mask,) = ctx.saved_tensors
        return zero_outside(upstream, mask), None
