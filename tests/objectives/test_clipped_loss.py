"""The closed-form gradient of the clipped surrogate equals autograd's, everywhere that autograd works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.kernels.clipped_loss import clipped_loss
from rollout_contract.kernels.policy import clipped_surrogate
from rollout_contract.kernels.ratio import bounded

CONFIGS: list[dict[str, Any]] = [
    {},
    {"dual_clip": 1.1},
    {"dual_clip": 3.0, "bound": 2.0},
    {"ratio_cap": 1.5},
    {"ratio_cap": 1.1, "dual_clip": 1.2},
    {"bound": None},
]


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    log_ratio, advantages = torch.randn(500, dtype=dtype), torch.randn(500, dtype=dtype)
    log_ratio[:4] = torch.tensor([0.0, 2.0, -2.0, 50.0])
    advantages[4:8] = 0.0
    return log_ratio.requires_grad_(), advantages


def by_autograd(log_ratio: Tensor, advantages: Tensor, **config: Any) -> Tensor:
    ratio = bounded(log_ratio, config.pop("bound", 20.0)).exp()
    return clipped_surrogate(ratio, advantages, 0.2, 0.28, **config)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_value_and_gradient_are_those_of_autograd(config: dict[str, Any], dtype: torch.dtype) -> None:
    log_ratio, advantages = inputs(dtype)
    loss, ratio = clipped_loss(log_ratio, advantages, 0.2, 0.28, **config)
    expected = by_autograd(log_ratio, advantages, **config)
    assert torch.equal(loss, expected)
    assert not ratio.requires_grad
    upstream = torch.rand_like(loss)
    torch.testing.assert_close(
        torch.autograd.grad(loss, log_ratio, upstream), torch.autograd.grad(expected, log_ratio, upstream)
    )


def test_backward_runs_as_often_as_the_graph_is_retained() -> None:
    log_ratio, advantages = inputs()
    loss = clipped_loss(log_ratio, advantages, 0.2, 0.28)[0].sum()
    first, second = (torch.autograd.grad(loss, log_ratio, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_second_derivative_is_refused() -> None:
    log_ratio, advantages = inputs()
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = (weight * clipped_loss(log_ratio, advantages, 0.2, 0.28)[0]).sum()
    (gradient,) = torch.autograd.grad(loss, log_ratio, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_an_overflowing_advantage_makes_no_nan() -> None:
    log_ratio = torch.tensor([87.0, 87.0], requires_grad=True)
    loss, _ = clipped_loss(log_ratio, torch.tensor([1e3, 1.0]), 0.2, 0.28, bound=None)
    loss.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [0.0, 0.0]


def test_functional_transforms() -> None:
    log_ratio, advantages = inputs()
    expected = torch.autograd.grad(by_autograd(log_ratio, advantages).sum(), log_ratio)[0]
    found = torch.func.grad(lambda x: clipped_loss(x, advantages, 0.2, 0.28)[0].sum())(log_ratio.detach())
    torch.testing.assert_close(found, expected)
    each = torch.func.vmap(torch.func.grad(lambda x, a: clipped_loss(x, a, 0.2, 0.28)[0].sum()))
    rows = each(log_ratio.detach().view(5, 100), advantages.view(5, 100))
    torch.testing.assert_close(rows.flatten(), expected)


# Dynamo itself makes an instance of the autograd function, which torch deprecates.
@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_as_one_graph(backend: str) -> None:
    log_ratio, advantages = inputs()

    def loss(x: Tensor) -> Tensor:
        return clipped_loss(x, advantages, 0.2, 0.28, 3.0)[0].sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    gradients = [torch.autograd.grad(f(log_ratio), log_ratio)[0] for f in (loss, compiled)]
    torch.testing.assert_close(*gradients)


def test_gradcheck() -> None:
    torch.manual_seed(1)
    log_ratio = torch.randn(40, dtype=torch.float64, requires_grad=True)
    advantages = torch.randn(40, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: clipped_loss(x, advantages, 0.2, 0.28, 1.5)[0], log_ratio, eps=1e-7)
