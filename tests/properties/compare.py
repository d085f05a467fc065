"""Comparison of packed tensors of the library with rows of the reference, and the settings of every property test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

FEW = settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
FEWER = settings(FEW, max_examples=20)


def pack(rows: Iterable[Iterable[float]]) -> Tensor:
    return torch.tensor([float(value) for entries in rows for value in entries], dtype=torch.float64)


def assert_close(
    found: Tensor, expected: Sequence[Sequence[float]] | Tensor, *, scale: float = 1.0, what: str = ""
) -> None:
    """Equal to 9 digits; ``scale`` is the size of the terms that an entry is a sum of."""
    wanted = expected if isinstance(expected, Tensor) else pack(expected)
    found = found.detach().to(torch.float64)
    assert found.shape == wanted.shape, f"{what}: shape {list(found.shape)}, not {list(wanted.shape)}"
    wrong = ~((found - wanted).abs() <= 1e-12 * max(scale, 1.0) + 1e-9 * wanted.abs())
    assert not wrong.any(), f"{what}\nlibrary   {found.tolist()}\nreference {wanted.tolist()}"
