"""How a record's number is reduced: over the batch, or sequence by sequence."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.conformance.harness import Vector
from tests.conformance.rollout_steps import (
    tensor_of,
)

Measure = Callable[[Vector], float]
Rows = list[int] | None


def reduced(vector: Vector, numbers: Callable[[Rows], float]) -> float:
    """A token mean over the batch, or the sum over sequences of their token means."""
    if vector.params.get("aggregation", {}).get("mode") != "sum_seq_token_mean":
        return numbers(vector.params.get("rows"))
    return math.fsum(per_sequence(vector, numbers))


def per_sequence(vector: Vector, numbers: Callable[[Rows], float]) -> list[float]:
    return [numbers([row]) for row in range(tensor_of(vector, "mask").shape[0])]
