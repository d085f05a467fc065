"""The kernels of corrections and mismatch metrics: one graph under torch.compile, and finite whatever is masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.kernels import importance, mismatch

X = torch.tensor([0.5, -0.7, 0.0, 3.0, -2.0, 0.1])
MASK = torch.tensor([True, True, False, True, True, False])
IDS = torch.tensor([0, 0, 0, 1, 1, 2])

CALLS: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = [
    (importance.sequence_any, (X > 0, MASK, IDS, 3)),
    (importance.truncated, (X.exp(), 0.5, 2.0)),
    (importance.truncated, (X.exp(), None, None)),
    (importance.below, (X, 0.0)),
    (importance.above, (X, None)),
    (importance.zeroed_outside, (X.exp(), 0.5, 2.0)),
    (importance.second_moment_mask, (X, MASK, 1.0)),
    (importance.interpolated_log_probs, (X - 4, X - 5, torch.linspace(0, 1, 6), True)),
    (importance.interpolated_log_probs, (X - 4, X - 5, torch.linspace(0, 1, 6), False)),
    (mismatch.chi_squared, (X,)),
    (mismatch.probability_error, (X,)),
    (mismatch.jensen_shannon, (X - 4, X - 5)),
]


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.parametrize(("kernel", "arguments"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_one_graph(kernel: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), kernel(*arguments))


def test_sequences_by_hand() -> None:
    assert importance.sequence_any(X > 1, MASK, IDS, 3).tolist() == [False, True, False]


def test_divergences_by_hand() -> None:
    x = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    e = torch.e
    assert mismatch.chi_squared(x).tolist() == pytest.approx([0.0, e**2 - 1, e**-2 - 1])
    assert mismatch.probability_error(x).tolist() == pytest.approx([1.0, e, e])


def test_small_divergences_keep_their_digits() -> None:
    # e^2x - 1 as written loses every digit here: float32 has 1 + 2e-9 = 1.
    assert mismatch.chi_squared(torch.tensor([1e-9])).item() == pytest.approx(2e-9, rel=1e-5)


def test_jensen_shannon_is_symmetric_and_never_negative() -> None:
    first = -torch.linspace(0, 10, 101, dtype=torch.float64)
    second = first.flip(0)
    found = mismatch.jensen_shannon(first, second)
    torch.testing.assert_close(found, mismatch.jensen_shannon(second, first))
    assert bool((found >= 0).all())


def test_the_log_probs_of_one_policy_are_a_fixed_point_of_the_blend() -> None:
    share = torch.linspace(0, 1, 6)
    for in_probability in (False, True):
        torch.testing.assert_close(importance.interpolated_log_probs(X - 4, X - 4, share, in_probability), X - 4)
