"""The kernels of KL and distillation run as one graph, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rollout_contract.kernels import kl, topk
from rollout_contract.kernels.divergence import divergence, divergence_of_states
from rollout_contract.kernels.entropy import entropy
from rollout_contract.kernels.reverse_kl import front_loaded_weights, future_reverse_kl

MEMBERS = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
TEACHER = torch.tensor([[0.1, 0.2, 0.3], [1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]).log_softmax(-1)
SAMPLES, POSITIONS = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
MASK = torch.tensor([True, True, True])


def clamped_k3(x: Tensor) -> Tensor:
    return kl.clamped(kl.k3(kl.clamped(x[:, 0], 2.0)), 1.0)


def straight_through(x: Tensor) -> Tensor:
    return kl.straight_through(kl.absolute(x[:, 0]), kl.k2(x[:, 0]))


def jensen_shannon_with_a_tail(x: Tensor) -> Tensor:
    student, teacher = (topk.with_outside(y, MEMBERS, "tail") for y in (x.log_softmax(-1), TEACHER))
    return divergence(student, teacher, 0.3)


def floored(x: Tensor) -> Tensor:
    log_probs = x.log_softmax(-1)
    return topk.floor_outside(log_probs, MEMBERS, entropy(log_probs), -100.0)


def full(x: Tensor) -> Tensor:
    return divergence_of_states(x, None, TEACHER, None, torch.ones(3), 0.5, "mixture", 2)


def minillm(x: Tensor) -> Tensor:
    return future_reverse_kl(x[:, 0], MASK, SAMPLES, POSITIONS, 0.9, length_normalised=True)


def front_loaded(x: Tensor) -> Tensor:
    return front_loaded_weights(x[:, 0].abs(), SAMPLES, 2, 0.5)


KERNELS = [clamped_k3, straight_through, jensen_shannon_with_a_tail, floored, full, minillm, front_loaded]


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_one_graph(kernel: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([[-0.5, 1.0, 0.3], [3.0, -1.0, 0.0], [0.7, 0.2, -2.0]], requires_grad=True)
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), kernel(x))
    found, expected = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, kernel))
    torch.testing.assert_close(found, expected)
