"""Batches for the tests of corrections and mismatch metrics: written by hand, or made by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract.schemas import TISBatch

QUICK = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
"""The same examples on every machine, however slow it is."""

GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30)


def packed(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.float64) -> Tensor:
    """The rows end to end."""
    return torch.tensor([entry for row in rows for entry in row], dtype=dtype)


@dataclass(frozen=True)
class Drawn:
    """A batch as rows of numbers, for references that loop, and packed, for the library."""

    old: list[list[float]]
    rollout: list[list[float]]
    mask: list[list[bool]]

    def batch(self, dtype: torch.dtype = torch.float64) -> TISBatch:
        return make(self.old, self.rollout, self.mask, dtype)


def make(
    old: list[list[float]],
    rollout: list[list[float]],
    mask: list[list[bool]] | None = None,
    dtype: torch.dtype = torch.float64,
) -> TISBatch:
    return TISBatch(
        response_lengths=[len(row) for row in old],
        loss_mask=packed([[True] * len(row) for row in old] if mask is None else mask, torch.bool),
        old_log_probs=packed(old, dtype),
        rollout_log_probs=packed(rollout, dtype),
    )


def of_ratios(ratios: list[list[float]], mask: list[list[bool]] | None = None) -> TISBatch:
    """A batch with these importance ratios: all rollout log-probs are -10."""
    old = [[-10.0 + float(torch.tensor(r, dtype=torch.float64).log()) for r in row] for row in ratios]
    return make(old, [[-10.0] * len(row) for row in ratios], mask)


@st.composite
def drawn(draw: st.DrawFn, spread: float = 3.0) -> Drawn:
    """Ragged rows, some without tokens, some without trained ones, with garbage where the mask is off."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=0, max_size=5))
    mask = [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in lengths]
    log_prob = st.floats(-20.0 - spread, -20.0, width=32)
    garbage = st.sampled_from(GARBAGE)

    def rows() -> list[list[float]]:
        return [[draw(log_prob if keep else garbage) for keep in row] for row in mask]

    return Drawn(rows(), rows(), mask)
