"""The parallel recurrence equals the loop that defines it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract.kernels.scan import following, forward_scan, reverse_scan


def loop(inputs: Tensor, decays: Tensor) -> Tensor:
    result, later = torch.zeros_like(inputs), 0.0
    for t in reversed(range(len(inputs))):
        later = result[t] = inputs[t] + decays[t] * later
    return result


def random_pair(length: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(length, generator=generator, dtype=torch.float64)
    decays = torch.rand(length, generator=generator, dtype=torch.float64)
    ends = torch.rand(length, generator=generator) < 0.1
    return inputs.to(dtype), decays.masked_fill(ends, 0.0).to(dtype)


@settings(deadline=None)
@given(length=st.integers(0, 600), seed=st.integers(0, 1000))
def test_scan_equals_loop(length: int, seed: int) -> None:
    inputs, decays = random_pair(length, seed)
    torch.testing.assert_close(reverse_scan(inputs, decays), loop(inputs, decays), rtol=1e-12, atol=1e-12)
    forward = loop(inputs.flip(0), decays.flip(0)).flip(0)
    torch.testing.assert_close(forward_scan(inputs, decays), forward, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 255, 256, 257, 4096, 4097])
def test_chunk_borders(length: int) -> None:
    inputs, decays = random_pair(length, 0)
    torch.testing.assert_close(reverse_scan(inputs, decays), loop(inputs, decays), rtol=1e-12, atol=1e-12)


def test_long_sequence_in_float32() -> None:
    """Gamma and lambda of 1 over 20,000 tokens: sums of sums do not lose what one running sum would lose."""
    inputs, _ = random_pair(20_000, 3)
    ones = torch.ones_like(inputs)
    exact = reverse_scan(inputs, ones)
    torch.testing.assert_close(reverse_scan(inputs.float(), ones.float()).double(), exact, rtol=1e-5, atol=1e-4)


def test_decays_of_one_and_zero_copy_exactly() -> None:
    values = torch.tensor([0.1, 0.0, 0.0, 0.3, 0.0, 0.7])
    carried = reverse_scan(values, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]))
    assert carried.tolist() == torch.tensor([0.1, 0.3, 0.3, 0.3, 0.7, 0.7]).tolist()


def test_following() -> None:
    assert following(torch.tensor([1, 2, 3]), -1).tolist() == [2, 3, -1]
    assert following(torch.zeros(0), 1.0).tolist() == []


def test_gradient_flows_through_the_scan() -> None:
    inputs, decays = random_pair(40, 5)
    assert torch.autograd.gradcheck(reverse_scan, (inputs.requires_grad_(), decays.requires_grad_()))
