"""Whitening: golden numbers, precision, and what it takes as advantages."""

from __future__ import annotations

import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rollout_contract import errors
from rollout_contract.advantages import Whitening, reinforce_plus_plus_baseline, whiten
from rollout_contract.configuration import settings
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import RewardBatch


def batch_of(*mask: list[int]) -> RolloutBatch:
    return RolloutBatch(response_lengths=[len(row) for row in mask], loss_mask=list(mask))


def test_by_hand() -> None:
    # 1, 2, 6 without the masked 50: mean 3, squares 4 + 1 + 9 = 14, variance 7 (Bessel) or 14 / 3.
    batch, values = batch_of([1, 0, 1], [1]), torch.tensor([1.0, 50.0, 2.0, 6.0], dtype=torch.float64)
    white = whiten(batch, values, Whitening(eps=2.0))
    assert white.tolist() == pytest.approx([-2 / 3, 0, -1 / 3, 1])
    white = whiten(batch, values, Whitening(eps=0.0, bessel=False))
    assert white.tolist() == pytest.approx([x / math.sqrt(14 / 3) for x in (-2, 0, -1, 3)])
    white = whiten(batch, values, Whitening(eps=16.0, epsilon_in="floor"))
    assert white.tolist() == pytest.approx([-0.5, 0, -0.25, 0.75])
    white = whiten(batch, values, Whitening(eps=1.0, epsilon_in="std"))
    assert white.tolist() == pytest.approx([x / (math.sqrt(7) + 1) for x in (-2, 0, -1, 3)])
    # The first sample by itself: 1, 2; the second has one token and is left alone.
    white = whiten(batch, values, Whitening(over="sample", eps=0.0))
    assert white.tolist() == pytest.approx([-1 / math.sqrt(2), 0, 1 / math.sqrt(2), 6])


@pytest.mark.parametrize("mask", [[0, 1, 0], [0, 0, 0]])
def test_fewer_than_two_tokens_are_left_alone(mask: list[int]) -> None:
    assert whiten(batch_of(mask), torch.tensor([1.0, 3.0, 2.0])).tolist() == [0.0, 3.0 * mask[1], 0.0]


def test_equal_advantages_become_zero() -> None:
    for value in (0.7, 1e6 + 0.3, -1e-12):
        white = whiten(batch_of([1] * 7), torch.full((7,), value), Whitening(eps=0.0))
        assert white.tolist() == [0.0] * 7


def test_float32_keeps_its_precision_at_a_mean_of_a_million() -> None:
    generator = torch.Generator().manual_seed(1)
    exact = 1e6 + torch.randn(20_000, generator=generator, dtype=torch.float64)
    values = exact.float()
    white = whiten(batch_of([1] * 20_000), values)
    expected = (values.double() - values.double().mean()) / values.double().std()
    torch.testing.assert_close(white.double(), expected, rtol=1e-5, atol=1e-5)
    assert float(white.mean()) == pytest.approx(0.0, abs=1e-5)


def test_a_longer_response_weighs_more() -> None:
    """REINFORCE++ with a baseline: tokens are counted, not samples; an unscorable sample is not in the statistics."""
    with settings(level="structure"):
        batch = RewardBatch(
            response_lengths=[3, 1, 2],
            loss_mask=[[1, 1, 1], [1], [1, 1]],
            group_ids=[0, 0, 0],
            rewards=torch.tensor([1.0, 0.0, float("nan")], dtype=torch.float64),
        )
    # Tokens 0.5 x 3 and -0.5: mean 0.25, variance (3 / 16 + 9 / 16) / 3 = 1 / 4.
    white = reinforce_plus_plus_baseline(batch, whitening=Whitening(eps=0.0))
    assert white.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("advantages", "error", "found"),
    [
        (torch.zeros(2), errors.ShapeError, "shape [2]"),
        (torch.zeros(3, 1), errors.ShapeError, "shape [3, 1]"),
        (torch.zeros(()), errors.ShapeError, "shape []"),
        (torch.zeros(3, dtype=torch.long), errors.DTypeError, "int64"),
        (torch.zeros(3, dtype=torch.bfloat16), errors.DTypeError, "bfloat16"),
        (torch.zeros(3, device="meta"), errors.DeviceError, "meta"),
    ],
)
def test_what_is_no_advantage(advantages: Any, error: type[errors.ContractError], found: str) -> None:
    with pytest.raises(error, match=re.escape(found)) as caught:
        whiten(batch_of([1, 1, 1]), advantages)
    assert caught.value.field == "advantages"


def test_a_list_is_refused() -> None:
    """By the contract, or by a run-time type checker that came first."""
    advantages: Any = [1.0, 2.0, 3.0]
    with pytest.raises((errors.ShapeError, TypeError), match=r"list|Type-check"):
        whiten(batch_of([1, 1, 1]), advantages)


def test_a_live_graph_is_cut_or_refused() -> None:
    batch, live = batch_of([1, 1]), torch.tensor([1.0, 2.0], requires_grad=True)
    assert not whiten(batch, live * 2.0).requires_grad
    with settings(live_inputs="refuse"), pytest.raises(errors.LiveGraphError, match="advantages"):
        whiten(batch, live * 2.0)


class ThreadRanks:
    """Stands in for ``torch.distributed``: each thread is a rank, and a reduction waits for all of them."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=20)
        self.partials: dict[int, Tensor] = {}

    def all_reduce(self, partial: Tensor, operation: Any, group: Any) -> None:
        self.partials[threading.get_ident()] = partial.clone()
        self.barrier.wait()
        everyone = torch.stack(list(self.partials.values()))
        partial.copy_(everyone.sum(0) if operation == self.ReduceOp.SUM else everyone.amax(0))
        self.barrier.wait()


def test_over_ranks_it_is_that_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a rank that holds nothing: it takes part in every reduction."""
    masks, rows = [[[1, 1, 0]], [[1, 1]], []], [[1.0, 2.0, 400.0], [4.0, -9.0], []]
    monkeypatch.setattr(torch, "distributed", ThreadRanks(3))

    def part(rank: int) -> Tensor:
        return whiten(batch_of(*masks[rank]), torch.tensor(rows[rank]), process_group=cast("Any", "all"))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(part, range(3)))
    expected = whiten(batch_of(*masks[0], *masks[1]), torch.tensor(rows[0] + rows[1]))
    torch.testing.assert_close(torch.cat(found), expected)
    assert not torch.equal(found[1], whiten(batch_of(*masks[1]), torch.tensor(rows[1])))
