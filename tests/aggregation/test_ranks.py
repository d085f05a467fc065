"""Two real processes: over all ranks, loss, gradient and metrics are those of the step on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from rollout_contract import Aggregation
from rollout_contract.corrections import Correction
from rollout_contract.errors import CorrectionError
from tests.aggregation.ranks import AGGREGATIONS, SHARES, WORLD, key, run, train, whole_step


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(run, args=(str(folder),), nprocs=WORLD, start_method="spawn")
    return [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: f"{a}{' with empty' if a.count_empty else ''}")
@pytest.mark.parametrize("with_groups", [True, False], ids=["groups", "no groups"])
@pytest.mark.parametrize("share", SHARES)
def test_as_on_one_rank(ranks: list[dict[Any, Any]], share: str, with_groups: bool, aggregation: Aggregation) -> None:
    value, gradient, metrics = train(whole_step(with_groups).weighted(aggregation))
    found = [rank[key(share, with_groups, aggregation)] for rank in ranks]
    assert sum(part[0] for part in found) == pytest.approx(value, rel=1e-12, abs=1e-15)
    together: dict[int, list[float]] = found[0][1] | found[1][1]
    assert together.keys() == gradient.keys()
    for row, expected in gradient.items():
        assert together[row] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    numbers = metrics.compute()
    for _, _, reduced, is_local in found:
        assert reduced == pytest.approx(numbers, rel=1e-12, abs=1e-12)
        assert not is_local


def test_counts_of_other_ranks_are_not_made_up() -> None:
    """After weights were counted over ranks, a rejection cannot be counted on one of them."""
    batch = whole_step().weighted("token-mean")
    spec = batch.aggregation.model_copy(update={"is_local": False})
    elsewhere = whole_step().weighted(spec)
    keep = elsewhere.loss_mask & torch.tensor([True, False] + [True] * 11)
    assert batch.corrected(Correction(batch, mask=keep)).loss_weights[0] > batch.loss_weights[0]
    with pytest.raises(CorrectionError):
        elsewhere.corrected(Correction(elsewhere, mask=keep))
