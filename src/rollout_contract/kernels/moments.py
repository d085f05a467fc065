"""Mean and variance that survive large means and small spreads.

Values are first shifted by the largest of them, which is exact for values that lie close together; equal values become
exactly 0, whatever their size. (Seven float32 rewards of 0.7 have a textbook deviation of 6e-8 and so, divided by it,
advantages of 0.8 where 0 is right.) The second pass then works on small numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.segments import segment_count, segment_max, segment_sum

Reduce: TypeAlias = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Combines a partial result with those of other ranks."""

EpsilonPlace: TypeAlias = Literal["variance", "floor", "std"]


class Moments(NamedTuple):
    """Statistics of the counted values of one set, or of many: the mean is ``shift + offset``.

    Attributes:
        number: how many values were counted.
        shift: the largest of them; 0 for none.
        offset: mean of ``values - shift``.
        variance: 0 for fewer than two values, and exactly 0 for equal ones.
    """

    number: Tensor
    shift: Tensor
    offset: Tensor
    variance: Tensor

    def center(self, values: Tensor) -> Tensor:
        """``values`` minus the mean, without rounding the mean first."""
        return (values - self.shift) - self.offset

    def gather(self, ids: Tensor) -> Moments:
        """The statistics of each entry's own set."""
        return Moments(self.number[ids], self.shift[ids], self.offset[ids], self.variance[ids])


def segment_moments(
    values: Float[Tensor, "entries"],
    counted: Bool[Tensor, "entries"],
    ids: Int[Tensor, "entries"],
    num_segments: int,
    bessel: bool = True,
) -> Moments:
    """One set per segment; every attribute is [segments]. Only the ``counted`` values are looked at."""
    count = segment_count(counted, ids, num_segments).to(values.dtype)
    largest = segment_max(values.where(counted, float("-inf")), ids, num_segments)
    shift = largest.where(count > 0, 0.0)
    shifted = (values - shift[ids]).where(counted, 0.0)
    offset = segment_sum(shifted, ids, num_segments) / count.clamp(min=1)
    squares = (shifted - offset[ids]).where(counted, 0.0).square()
    variance = segment_sum(squares, ids, num_segments) / (count - int(bessel)).clamp(min=1)
    return Moments(count, shift, offset, variance)


def _local(partial: Tensor, _: Literal["sum", "max"]) -> Tensor:
    return partial


def moments(
    values: Float[Tensor, "entries"], counted: Bool[Tensor, "entries"], bessel: bool = True, reduce: Reduce = _local
) -> Moments:
    """All ``counted`` values as one set; every attribute has no dimension.

    ``reduce`` is called three times, on each rank alike, however many values a rank holds.
    """
    lowest = values.new_full((1,), float("-inf"))
    largest = reduce(torch.cat([values.where(counted, float("-inf")), lowest]).amax(), "max")
    shift = largest.where(largest > float("-inf"), 0.0)
    shifted = (values - shift).where(counted, 0.0)
    total, count = reduce(torch.stack([shifted.sum(), counted.sum().to(values.dtype)]), "sum").unbind()
    offset = total / count.clamp(min=1)
    squares = (shifted - offset).where(counted, 0.0).square().sum()
    variance = reduce(squares, "sum") / (count - int(bessel)).clamp(min=1)
    return Moments(count, shift, offset, variance)


def inverse_std(variance: Float[Tensor, "*sets"], eps: float, epsilon_in: EpsilonPlace) -> Float[Tensor, "*sets"]:
    """1 / standard deviation, with ``eps`` where trainers put it; 0 for a variance of 0, even if ``eps`` is 0.

    ``variance``: ``1 / sqrt(variance + eps)``; ``floor``: ``1 / sqrt(max(variance, eps))``;
    ``std``: ``1 / (sqrt(variance) + eps)``.
    """
    positive = variance.where(variance > 0, 1.0)
    if epsilon_in == "std":
        inverse = 1.0 / (positive.sqrt() + eps)
    else:
        inverse = torch.rsqrt(positive + eps if epsilon_in == "variance" else positive.clamp(min=eps))
    return inverse.where(variance > 0, 0.0)
