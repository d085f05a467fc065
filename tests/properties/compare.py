"""Comparison of packed tensors of the library with rows of the reference, and the settings of every property test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from rollout_contract.aggregation import Mode
from rollout_contract.losses.loss import Loss
from tests.properties.batches import Case
from tests.reference import aggregation
from tests.reference.scalars import Rows, gradients, rows, weighted_sum

FEW = settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
FEWER = settings(FEW, max_examples=20)

MODE: Mode = "seq-mean-token-mean"


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


def assert_loss(loss: Loss, live: Tensor, expected: Rows, by: Rows, case: Case, what: str) -> None:
    """Value and gradient of an aggregated loss; ``by`` holds the scalars that ``live`` has in its packed form."""
    weights = aggregation.seq_mean_token_mean(case.mask, count_empty=False)
    total = weighted_sum(expected, weights)
    sizes = [[abs(float(x.detach())) for x in entries] for entries in expected]
    assert_close(loss.value, total.detach(), scale=float(weighted_sum(rows(sizes), weights)), what=f"{what} value")
    loss.value.backward()
    wanted = pack(gradients(total, by)).reshape(live.shape)
    assert live.grad is not None
    assert_close(live.grad, wanted, scale=float(wanted.abs().max()) if wanted.numel() else 1.0, what=f"{what} gradient")
