"""Means and variances: exact for equal values, precise at large means, nothing from what is not counted."""

from __future__ import annotations

import math

import pytest
import torch

from rollout_contract.kernels.moments import inverse_std, moments, segment_moments
from tests.advantages.batches import Case, over_cases


@over_cases
def test_segment_moments_are_those_of_each_segment(case: Case) -> None:
    values = case.flat(case.token_rewards)
    mask = torch.tensor([keep for row in case.mask for keep in row], dtype=torch.bool)
    ids = torch.tensor([i for i, row in enumerate(case.mask) for _ in row], dtype=torch.long)
    for bessel in (True, False):
        found = segment_moments(values, mask, ids, len(case.mask), bessel)
        for i, (row, kept) in enumerate(zip(case.token_rewards, case.mask, strict=True)):
            counted = [number for number, keep in zip(row, kept, strict=True) if keep]
            assert found.number[i] == len(counted)
            mean = math.fsum(counted) / max(len(counted), 1)
            spread = math.fsum((c - mean) ** 2 for c in counted)
            assert float(found.shift[i] + found.offset[i]) == pytest.approx(mean, abs=1e-12)
            assert float(found.variance[i]) == pytest.approx(spread / max(len(counted) - bessel, 1), abs=1e-12)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 1e30])
def test_uncounted_values_are_not_seen(garbage: float) -> None:
    clean = torch.tensor([1.0, 5.0, 2.0, 4.0])
    mask = torch.tensor([True, False, True, True])
    dirty = clean.where(mask, garbage)
    ids = torch.tensor([0, 0, 0, 1])
    assert [part.tolist() for part in moments(dirty, mask)] == [part.tolist() for part in moments(clean, mask)]
    found, expected = (segment_moments(v, mask, ids, 2) for v in (dirty, clean))
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_nothing_counted() -> None:
    for values in (torch.zeros(0), torch.full((3,), float("nan"))):
        found = moments(values, torch.zeros(len(values), dtype=torch.bool))
        assert [float(part) for part in found] == [0.0, 0.0, 0.0, 0.0]
    found = segment_moments(torch.zeros(0), torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long), 2)
    assert found.variance.tolist() == [0.0, 0.0]


def test_one_value_has_no_variance() -> None:
    found = moments(torch.tensor([3.0]), torch.tensor([True]))
    assert (float(found.variance), float(found.center(torch.tensor(3.0)))) == (0.0, 0.0)


@pytest.mark.parametrize("value", [0.7, 1e6 + 0.1, -3.3e-20, 2e30])
def test_equal_values_have_no_variance_and_are_at_their_mean(value: float) -> None:
    values = torch.full((7,), value)
    found = moments(values, torch.ones(7, dtype=torch.bool))
    assert float(found.variance) == 0.0
    assert found.center(values).tolist() == [0.0] * 7


def test_float32_at_a_mean_of_a_million() -> None:
    """A single pass, mean of squares minus square of the mean, gives a variance of 0 or worse here."""
    generator = torch.Generator().manual_seed(0)
    values = (1e6 + torch.randn(50_000, generator=generator, dtype=torch.float64)).float()
    exact = values.double()
    found = moments(values, torch.ones(50_000, dtype=torch.bool))
    assert float(found.variance) == pytest.approx(float(exact.var()), rel=1e-5)
    expected = ((exact - exact.mean()) / exact.std()).float()
    torch.testing.assert_close(found.center(values) / found.variance.sqrt(), expected, rtol=1e-5, atol=1e-5)
    single_pass = values.square().mean() - values.mean() ** 2
    assert not math.isclose(float(single_pass), float(exact.var(correction=0)), rel_tol=0.5)


def test_inverse_std() -> None:
    variance = torch.tensor([4.0, 0.0], dtype=torch.float64)
    assert inverse_std(variance, 0.0, "variance").tolist() == [0.5, 0.0]
    assert inverse_std(variance, 5.0, "variance").tolist() == [pytest.approx(1 / 3), 0.0]
    assert inverse_std(variance, 9.0, "floor").tolist() == [pytest.approx(1 / 3), 0.0]
    assert inverse_std(variance, 1.0, "floor").tolist() == [0.5, 0.0]
    assert inverse_std(variance, 2.0, "std").tolist() == [0.25, 0.0]
