"""Sums, means and extremes over the samples of a packed vector.

``ids[t]`` names the sample (or group) that entry ``t`` belongs to. All functions are differentiable in ``values`` and
work for samples without any entry.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor


def segment_sum(
    values: Float[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int
) -> Float[Tensor, "segments"]:
    """Sum of ``values`` per segment; 0 for an empty one."""
    return values.new_zeros(num_segments).index_add(0, ids, values)


def segment_count(
    mask: Bool[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int
) -> Int[Tensor, "segments"]:
    """Number of True entries per segment."""
    counts = ids.new_zeros(num_segments)
    return counts.index_add(0, ids, mask.to(ids.dtype))


def segment_mean(
    values: Float[Tensor, "tokens"], mask: Bool[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int
) -> Float[Tensor, "segments"]:
    """Mean of the masked-in ``values`` per segment; 0 where nothing is masked in."""
    kept = values.where(mask, 0.0)
    count = segment_count(mask, ids, num_segments).clamp(min=1)
    return segment_sum(kept, ids, num_segments) / count.to(values.dtype)


def segment_max(
    values: Float[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int, empty: float = 0.0
) -> Float[Tensor, "segments"]:
    """Largest value per segment; ``empty`` for a segment without entries."""
    start = values.new_full((num_segments,), empty)
    return start.scatter_reduce(0, ids, values, reduce="amax", include_self=False)


def segment_min(
    values: Float[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int, empty: float = 0.0
) -> Float[Tensor, "segments"]:
    """Smallest value per segment; ``empty`` for a segment without entries."""
    start = values.new_full((num_segments,), empty)
    return start.scatter_reduce(0, ids, values, reduce="amin", include_self=False)
