"""Scalars, rows of scalars, and the few functions of them that the formulas need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Row = list[Tensor]
Rows = list[Row]
Mask = Sequence[Sequence[bool]]


def scalar(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def row(values: Iterable[Any]) -> Row:
    return [scalar(value) for value in values]


def rows(values: Iterable[Iterable[Any]]) -> Rows:
    return [row(entries) for entries in values]


def leaves(values: Iterable[Iterable[float]]) -> Rows:
    """Rows of scalars that a loss can be differentiated by, one by one."""
    return [[scalar(value).clone().requires_grad_() for value in entries] for entries in values]


def gradients(loss: Tensor, by: Rows) -> list[list[float]]:
    """d loss / d each scalar; 0 for a scalar that the loss does not depend on."""
    flat = [entry for entries in by for entry in entries]
    found = torch.autograd.grad(loss, flat, allow_unused=True) if loss.requires_grad else [None] * len(flat)
    numbers = iter([0.0 if gradient is None else float(gradient) for gradient in found])
    return [[next(numbers) for _ in entries] for entries in by]


def numbers(values: Rows) -> list[list[float]]:
    return [[float(value.detach()) for value in entries] for entries in values]


def per_token(mask: Mask, term: Callable[[int, int], Tensor]) -> Rows:
    """``term(i, t)`` at every token that is masked in, 0 at the others."""
    return [[term(i, t) if kept else scalar(0.0) for t, kept in enumerate(entries)] for i, entries in enumerate(mask)]


def kept(values: Row, mask: Sequence[bool]) -> Row:
    """The values of a row that are masked in."""
    return [value for value, keep in zip(values, mask, strict=True) if keep]


def total(values: Iterable[Tensor]) -> Tensor:
    result = scalar(0.0)
    for value in values:
        result = result + value
    return result


def mean(values: Sequence[Tensor], eps: float | None = None) -> Tensor:
    """Sum over number, with a number of at least 1; or over the number plus ``eps``."""
    return total(values) / (max(len(values), 1) if eps is None else len(values) + eps)


def variance(values: Sequence[Tensor], *, bessel: bool) -> Tensor:
    centre = mean(values)
    return total((value - centre) ** 2 for value in values) / (len(values) - bessel)


def clamp(value: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """The value between its bounds; a bound where it is outside, without a gradient."""
    if low is not None and value < low:
        return scalar(low)
    if high is not None and value > high:
        return scalar(high)
    return value


def clamp_log(value: Tensor, bound: float | None) -> Tensor:
    """A log-ratio between ``-bound`` and ``bound``; unclamped for None."""
    return value if bound is None else clamp(value, -bound, bound)


def larger(a: Tensor, b: Tensor) -> Tensor:
    return a if a >= b else b


def smaller(a: Tensor, b: Tensor) -> Tensor:
    return a if a <= b else b


def weighted_sum(losses: Rows, weights: Sequence[Sequence[float | Tensor]]) -> Tensor:
    """sum over samples and tokens of weight x loss."""
    terms = (w * loss for ws, ls in zip(weights, losses, strict=True) for w, loss in zip(ws, ls, strict=True))
    return total(terms)
