"""Metrics over ranks: the same numbers as over one batch, with one collective for each way of merging."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from rollout_contract import metrics
from rollout_contract.metrics import Metrics

VALUES = torch.tensor([[1.0, 2.0, 3.0], [5.0, 0.5, 7.0]])
MASK = torch.tensor([[True, True, False], [True, False, False]])


def observed(values: Tensor, mask: Tensor) -> Metrics:
    found = {"mean": metrics.mean(values, mask), "low": metrics.minimum(values, mask), "std": metrics.std(values, mask)}
    return Metrics(found | {"high": metrics.maximum(values, mask), "total": metrics.total(values, mask)})


def test_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = (observed(values, mask) for values, mask in zip(VALUES, MASK, strict=True))
    other_rank = {"SUM": ("mean", "std", "total"), "MIN": ("low",), "MAX": ("high",)}
    used: list[Any] = []

    def combine(joined: Tensor, operation: Any, group: Any) -> None:
        name = next(name for name in other_rank if getattr(ReduceOp, name) == operation)
        used.append(name)
        others = torch.cat([theirs[metric].parts for metric in other_rank[name]])
        merge = {"SUM": torch.add, "MIN": torch.minimum, "MAX": torch.maximum}[name]
        joined.copy_(merge(joined, others))

    monkeypatch.setattr(torch.distributed, "all_reduce", combine)
    before = mine.compute()
    reduced = mine.all_reduce()
    assert sorted(used) == ["MAX", "MIN", "SUM"]
    assert reduced.compute() == pytest.approx(observed(VALUES, MASK).compute())
    assert list(reduced) == list(mine)
    assert mine.compute() == before


def test_nothing_to_reduce_needs_no_ranks() -> None:
    assert Metrics().all_reduce().compute() == {}
