"""Faults of denominators and containers that users of other trainers reported in public, with their numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import (
    Fixed,
    KLBatch,
    Metadata,
    PolicyBatch,
    RolloutBatch,
    TISBatch,
)
from rollout_contract.corrections import Reject, Truncate
from rollout_contract.errors import (
    MetadataError,
    MutatedError,
)
from rollout_contract.losses.loss import weighted_sum

NAN = float("nan")


def policy(advantages: Any, lengths: list[int], **fields: Any) -> PolicyBatch:
    count = sum(lengths)
    plain: dict[str, Any] = {"loss_mask": torch.ones(count), "old_log_probs": torch.zeros(count) - 1.0}
    return PolicyBatch(response_lengths=lengths, advantages=advantages, **(plain | fields))


# -- 54 to 59: denominators -----------------------------------------------------------------------------------------


def total(batch: RolloutBatch, terms: Tensor) -> float:
    """The loss of given token losses."""
    return weighted_sum(batch, terms).value.item()


def of_mask(mask: list[list[int]]) -> RolloutBatch:
    return RolloutBatch(response_lengths=[len(row) for row in mask], loss_mask=mask)


def test_case_054_the_mean_is_over_the_whole_step() -> None:
    """prime-rl#2358, SkyRL#1296: one token of loss 1, then three of loss 0. Wrong 0.5, right 0.25."""
    terms = torch.tensor([1.0, 0.0, 0.0, 0.0])
    step = of_mask([[1], [1, 1, 1]])
    means = [
        total(of_mask([[1]]).weighted("token-mean"), terms[:1]),
        total(of_mask([[1] * 3]).weighted("token-mean"), terms[1:]),
    ]
    assert sum(means) / 2 == 0.5
    weighted = step.weighted("token-mean")
    assert total(weighted, terms) == 0.25
    first, second = weighted.split(samples=1)
    assert total(first, terms[:1]) + total(second, terms[1:]) == 0.25


def test_case_055_the_name_of_a_mode_is_its_formula() -> None:
    """verl#931: seq-mean-token-sum of [[1, 1, 1, 1], [1, 0, 0, 0]]: right 2.5, wrong 1.0."""
    batch, ones = of_mask([[1, 1, 1, 1], [1, 0, 0, 0]]), torch.ones(8)
    assert total(batch.weighted("seq-mean-token-sum"), ones) == 2.5
    assert total(batch.weighted("token-mean"), ones) == pytest.approx(1.0)
    assert total(batch.weighted("seq-mean-token-mean"), ones) == 1.0


def test_case_056_tool_tokens_do_not_count() -> None:
    """slime#365: the count is that of the mask, never that of the lengths."""
    batch = of_mask([[1, 0, 0, 1], [1, 1]])
    assert batch.weighted("token-mean").loss_weights.tolist() == [0.25, 0.0, 0.0, 0.25, 0.25, 0.25]


def test_case_058_rejected_tokens_leave_the_denominator() -> None:
    """verl#3915: kept ratios sum to 2.455; wrong 2.455 / 5 = 0.491, right 2.455 / 2 = 1.2275."""
    log_ratios = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    rollout = torch.full((5,), -12.0)
    step = TISBatch(
        response_lengths=[5], loss_mask=[1] * 5, old_log_probs=rollout + log_ratios, rollout_log_probs=rollout
    )
    # Of the report's five, e^0.8 = 2.2255 lies outside [0.5, 2] as well.
    kept = step.corrected((Truncate(high=None) & Reject(low=0.5, high=2.0))(step)).weighted("token-mean")
    assert kept.loss_mask.tolist() == [True, False, False, False, True]
    terms = log_ratios.exp() * kept.loss_mask
    assert terms.sum().item() == pytest.approx(2.455, abs=1e-3)
    assert weighted_sum(kept, torch.ones(5), correction="multiplies").value.item() == pytest.approx(1.2275, abs=1e-4)


def test_case_059_a_masked_completion_leaves_the_denominator() -> None:
    """trl#6439: two completions of 4 tokens, the second truncated and masked: 4 trained tokens, not 8."""
    batch = of_mask([[1] * 4, [0] * 4])
    assert batch.weighted("token-mean").loss_weights.tolist() == [0.25] * 4 + [0.0] * 4
    assert total(batch.weighted("seq-mean-token-mean"), torch.ones(8)) == 1.0


# -- 79 to 84: containers and aliases -------------------------------------------------------------------------------


def test_case_079_an_expanded_advantage() -> None:
    """NeMo-RL#2787: one write would hit the whole row."""
    expanded = torch.tensor([[1.0], [2.0]]).expand(2, 3)
    batch = type("Two", (RolloutBatch,), {"__annotations__": {"x": Fixed[Float[Tensor, "batch three"]]}})(
        response_lengths=[1, 1], loss_mask=[1, 1], x=expanded
    )
    batch.x[0, 1] = -9.0
    assert batch.x.tolist() == [[1.0, -9.0, 1.0], [2.0, 2.0, 2.0]]
    assert expanded.tolist() == [[1.0] * 3, [2.0] * 3]


def test_case_080_a_stored_tensor_that_is_edited_later() -> None:
    """slime#2114: k *= coef; k[-1] += r edited the stored KL."""
    kl = torch.tensor([1.0, 1.0])
    batch = KLBatch(response_lengths=[2], loss_mask=[1, 1], ref_log_probs=-kl)
    stored = batch.ref_log_probs
    stored *= -0.1
    stored[-1] += 5.0
    with pytest.raises(MutatedError) as caught:
        batch.weighted("token-mean")
    assert caught.value.field == "ref_log_probs"
    assert caught.value.found.endswith("edits in place since then")


def test_case_082_metadata_that_differs_is_no_detail() -> None:
    """verl#3699: concat kept the first shard's."""

    class Noted(PolicyBatch):
        note: Metadata[float]

    def noted(value: float) -> Noted:
        return policy([1.0], [1]).extend(Noted, note=value)

    with pytest.raises(MetadataError):
        Noted.concat([noted(1.0), noted(2.0)])
    assert math.isnan(Noted.concat([noted(NAN), noted(float("nan"))]).note)


def test_case_082_every_index_gives_a_batch() -> None:
    """verl#2766."""
    batch = policy([1.0, 2.0, 3.0], [1, 1, 1])
    for part, expected in (
        (batch[1], [2.0]),
        (batch[-1], [3.0]),
        (batch[0:2], [1.0, 2.0]),
        (batch[torch.tensor([True, False, True])], [1.0, 3.0]),
        (batch[np.array([2, 0])], [3.0, 1.0]),
        (batch[np.int64(1)], [2.0]),
    ):
        assert type(part) is PolicyBatch
        assert part.advantages.tolist() == expected
        assert type(len(part)) is int
        assert all(type(length) is int for length in part.response_lengths)


def test_case_084_arrays_that_cannot_be_written() -> None:
    """ray#12789: torch would share them writably."""
    array = np.frombuffer(np.ones(2, dtype=np.float32).tobytes(), dtype=np.float32)
    batch = policy(array, [2])
    batch.advantages.mul_(3.0)
    assert array.tolist() == [1.0, 1.0]
    rows = policy([array[:1], array[1:]], [1, 1])
    rows.advantages.mul_(3.0)
    assert array.tolist() == [1.0, 1.0]
