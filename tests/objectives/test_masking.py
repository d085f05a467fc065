"""Replacing what lies outside a mask: exact, whatever lies there, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch

from rollout_contract.kernels.masking import fill_outside, zero_outside

VALUES = [1.5, -0.0, math.nan, math.inf, -math.inf, 1e-45, -3.25, 0.0]
MASK = torch.tensor([True, True, False, False, False, True, True, False])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)


@dtypes
def test_it_is_where_to_the_bit(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0 if dtype == torch.int64 and not math.isfinite(v) else v for v in VALUES]).to(dtype)
    found, expected = zero_outside(values, MASK), torch.where(MASK, values, torch.zeros((), dtype=dtype))
    assert torch.equal(found, expected)
    if dtype.is_floating_point:
        assert torch.equal(torch.signbit(found), torch.signbit(expected))


@pytest.mark.parametrize("fill", [0.0, math.inf, -math.inf, 7.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_filling_is_where_to_the_bit(fill: float, dtype: torch.dtype) -> None:
    values = torch.tensor(VALUES, dtype=dtype)
    assert torch.equal(fill_outside(values, MASK, fill), torch.where(MASK, values, fill))


def test_the_mask_broadcasts_over_trailing_dimensions() -> None:
    values = torch.randn(8, 3)
    assert torch.equal(zero_outside(values, MASK[:, None]), values * MASK[:, None])
    assert torch.equal(zero_outside(values.T, MASK), (values * MASK[:, None]).T)


def test_the_gradient_is_exactly_zero_outside_even_for_nan() -> None:
    values = torch.tensor(VALUES, requires_grad=True)
    zero_outside(values, MASK).backward(torch.full((8,), math.nan).where(MASK, 1.0).where(~MASK, 2.0))
    assert torch.equal(values.grad, torch.where(MASK, 2.0, 0.0))


def test_it_is_differentiable_twice_and_under_function_transforms() -> None:
    values = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: zero_outside(x, MASK), values)
    assert torch.autograd.gradgradcheck(lambda x: zero_outside(x, MASK).pow(3), values)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return zero_outside(x, MASK).square().sum()

    plain = values.detach()
    assert torch.equal(torch.func.grad(loss)(plain), 2 * plain * MASK)
    stacked = torch.stack([plain, plain + 1])
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(stacked), 2 * stacked * MASK)


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of dynamo itself
def test_it_compiles_as_one_graph() -> None:
    compiled = torch.compile(lambda x: zero_outside(x, MASK).exp().sum(), fullgraph=True, backend="aot_eager")
    values = torch.randn(8, requires_grad=True)
    compiled(values).backward()
    assert torch.allclose(values.grad, values.detach().exp() * MASK)
