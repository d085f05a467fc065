"""Metrics: their numbers, that splitting a step does not change them, and that they keep no graph."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.metrics import Metric, Metrics
from tests.properties.compare import FEW

Make = Callable[[Tensor, Tensor], Metric]

VALUES = torch.tensor([1.0, 2.0, 4.0, 100.0])
MASK = torch.tensor([True, True, True, False])

EXPECTED: dict[str, tuple[Make, float, float]] = {
    # name: how it is made, of 1 2 4, of nothing
    "mean": (metrics.mean, 7 / 3, 0.0),
    "total": (metrics.total, 7.0, 0.0),
    "maximum": (metrics.maximum, 4.0, -math.inf),
    "minimum": (metrics.minimum, 1.0, math.inf),
    "exp_mean": (metrics.exp_mean, math.exp(7 / 3), 1.0),
    "std": (metrics.std, math.sqrt(21 / 3 - 49 / 9), 0.0),
    "effective_fraction": (metrics.effective_fraction, 49 / (3 * 21), 1.0),
}
EVERY = pytest.mark.parametrize("name", EXPECTED)


@EVERY
def test_by_hand(name: str) -> None:
    make, expected, empty = EXPECTED[name]
    assert make(VALUES, MASK).compute() == pytest.approx(expected, rel=1e-12)
    assert make(VALUES, torch.zeros(4, dtype=torch.bool)).compute() == empty
    assert make(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).compute() == empty


def test_fraction() -> None:
    hits = torch.tensor([True, False, False, True])
    assert metrics.fraction(hits, MASK).compute() == pytest.approx(1 / 3)
    assert metrics.fraction(hits, torch.zeros(4, dtype=torch.bool)).compute() == 0.0


@EVERY
@pytest.mark.parametrize("garbage", [float("nan"), math.inf, -math.inf, 1e30])
def test_what_is_masked_is_not_seen(name: str, garbage: float) -> None:
    make = EXPECTED[name][0]
    values = VALUES.clone()
    values[3] = garbage
    assert make(values, MASK).compute() == make(VALUES, MASK).compute()


@EVERY
@given(data=st.data())
@FEW
def test_a_split_changes_nothing(name: str, data: st.DataObject) -> None:
    make = EXPECTED[name][0]
    pairs = data.draw(st.lists(st.tuples(st.floats(-8, 8), st.booleans()), max_size=12))
    values = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    mask = torch.tensor([keep for _, keep in pairs], dtype=torch.bool)
    cut = data.draw(st.integers(0, len(pairs)))
    merged = make(values[:cut], mask[:cut]).merge(make(values[cut:], mask[cut:]))
    assert merged.compute() == pytest.approx(make(values, mask).compute(), rel=1e-9, abs=1e-6)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_every_dtype(name: str, dtype: torch.dtype) -> None:
    make, expected, _ = EXPECTED[name]
    metric = make(VALUES.to(dtype), MASK)
    assert metric.parts.dtype == torch.float64
    assert metric.compute() == pytest.approx(expected, rel=1e-12)


def test_a_standard_deviation_of_float32_numbers_far_from_zero() -> None:
    """In float32 the mean of squares leaves 0.0 in the one case and 0.38 in the other."""
    noise = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(10_000, dtype=torch.bool)
    for values in (1.0 + 1e-4 * noise, -1000.0 + 1e-2 * noise):
        expected = float(values.double().std(correction=0))
        assert metrics.std(values, mask).compute() == pytest.approx(expected, rel=1e-4)


def test_weights_that_would_overflow_when_squared() -> None:
    weights = torch.tensor([1e30, 1e30])
    assert metrics.effective_fraction(weights, torch.ones(2, dtype=torch.bool)).compute() == pytest.approx(1.0)


def test_a_perplexity_does_not_overflow() -> None:
    assert math.isfinite(metrics.exp_mean(torch.tensor([1e6]), torch.ones(1, dtype=torch.bool)).compute())


# -- no graph -------------------------------------------------------------------------------------------------------


@EVERY
def test_metrics_of_live_values_carry_no_graph(name: str) -> None:
    live = VALUES.clone().requires_grad_()
    assert EXPECTED[name][0](live * 2, MASK).parts.grad_fn is None


def test_a_metric_made_by_hand_is_cut_as_well() -> None:
    live = torch.ones(2, requires_grad=True)
    metric = Metric("mean", live * 2)
    assert not metric.parts.requires_grad
    merged = metric.merge(Metric("mean", live * 3))
    assert not merged.parts.requires_grad


# -- names ----------------------------------------------------------------------------------------------------------


def table() -> Metrics:
    return Metrics({"a": metrics.mean(VALUES, MASK), "b": metrics.maximum(VALUES, MASK)})


def test_a_mapping_of_names() -> None:
    found = table()
    assert (list(found), len(found), "a" in found, "c" in found) == (["a", "b"], 2, True, False)
    assert repr(found) == "Metrics(a, b)"
    assert found.compute() == {"a": pytest.approx(7 / 3), "b": 4.0}
    assert Metrics().compute() == {}
    assert list(found.prefixed("policy")) == ["policy/a", "policy/b"]


def test_merging_keeps_what_only_one_side_has() -> None:
    other = Metrics({"b": metrics.maximum(VALUES * 2, MASK), "c": metrics.total(VALUES, MASK)})
    assert table().merge(other).compute() == {"a": pytest.approx(7 / 3), "b": 8.0, "c": 7.0}


def test_two_rules_under_one_name_do_not_merge() -> None:
    with pytest.raises(ValueError, match="cannot merge a 'mean' metric with a 'max' metric"):
        metrics.mean(VALUES, MASK).merge(metrics.maximum(VALUES, MASK))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(duplicate: Any) -> None:
    assert duplicate(table()).compute() == table().compute()
