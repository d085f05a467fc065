"""Golden numbers, worked out by hand. Two prompts with two and three samples; the last one fails to be scored."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.advantages import (
    RoleBaselines,
    dr_grpo,
    gdpo,
    gpg,
    grpo,
    length_shaped_grpo,
    max_rl,
    opo,
    optimal_token_baseline,
    pass_at_k,
    place_rewards,
    raw_reward,
    remax,
    reward_metrics,
    rloo,
    role_conditioned,
    zero_variance,
)
from rollout_contract.configuration import settings
from rollout_contract.schemas import (
    OTBBatch,
    ReMaxBatch,
    RewardBatch,
    RewardComponentsBatch,
    RoleRewardBatch,
)

NAN = float("nan")


def samples(rewards: list[float], groups: list[int], lengths: list[int] | None = None) -> RewardBatch:
    """A batch with trained tokens only."""
    lengths = lengths or [1] * len(rewards)
    with settings(level="structure"):
        return RewardBatch(
            response_lengths=lengths,
            loss_mask=[[1] * length for length in lengths],
            group_ids=groups,
            rewards=torch.tensor(rewards, dtype=torch.float64),
        )


def exactly(result: Tensor, expected: list[float]) -> None:
    assert result.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)


REWARDS, GROUPS = [1.0, 3.0, 0.0, 0.0, 6.0], [5, 5, 9, 9, 9]


def test_grpo() -> None:
    # Group 5: mean 2, std sqrt(2). Group 9: mean 2, std sqrt((4 + 4 + 16) / 2) = sqrt(12).
    batch = samples(REWARDS, GROUPS)
    a, b = 1 / math.sqrt(2), 2 / math.sqrt(12)
    exactly(grpo(batch, eps=0.0), [-a, a, -b, -b, 2 * b])
    exactly(
        grpo(batch, eps=0.5),
        [
            -1 / (math.sqrt(2) + 0.5),
            1 / (math.sqrt(2) + 0.5),
            *[-2 / (math.sqrt(12) + 0.5)] * 2,
            4 / (math.sqrt(12) + 0.5),
        ],
    )
    exactly(grpo(batch, eps=0.0, bessel=False), [-1, 1, -2 / math.sqrt(8), -2 / math.sqrt(8), 4 / math.sqrt(8)])
    # All five: mean 2, squares 1 + 1 + 4 + 4 + 16 = 26, std sqrt(6.5).
    exactly(grpo(batch, scale="batch", eps=0.0), [x / math.sqrt(6.5) for x in (-1, 1, -2, -2, 4)])
    exactly(grpo(batch, scale="none"), [-1, 1, -2, -2, 4])
    exactly(dr_grpo(batch), [-1, 1, -2, -2, 4])
    exactly(grpo(batch, scale="none", leave_one_out=True), [-2, 2, -3, -3, 6])
    exactly(grpo(batch, eps=0.0, variance_floor=9.0), [-1 / 3, 1 / 3, -b, -b, 2 * b])


def test_rloo() -> None:
    # Others of 1: 3; of 3: 1; of 0: (0 + 6) / 2; of 6: 0.
    exactly(rloo(samples(REWARDS, GROUPS)), [-2, 2, -3, -3, 6])


def test_opo_weighs_by_trained_tokens() -> None:
    # Group 5: (1 x 1 + 3 x 3) / 4 = 2.5. Group 9: (6 x 2) / 4 = 3.
    result = opo(samples(REWARDS, GROUPS, [1, 3, 1, 1, 2]))
    exactly(result, [-1.5, 0.5, 0.5, 0.5, -3, -3, 3, 3])


def test_gpg_scales_by_samples_with_a_reward() -> None:
    # Three of five rewards are not 0: alpha = 5 / 3.
    exactly(gpg(samples(REWARDS, GROUPS)), [x * 5 / 3 for x in (-1, 1, -2, -2, 4)])
    exactly(gpg(samples(REWARDS, GROUPS), f_norm=10.0), [x / 6 for x in (-1, 1, -2, -2, 4)])
    exactly(gpg(samples([0.0, 0.0], [0, 0])), [0, 0])


def test_pass_at_k() -> None:
    batch = samples(REWARDS, GROUPS)
    exactly(pass_at_k(batch, normalize=False), [0, 2, 0, 0, 6])
    exactly(pass_at_k(batch, eps=0.0), [0, 2 / math.sqrt(2), 0, 0, 6 / math.sqrt(12)])
    exactly(pass_at_k(samples([4.0, 4.0, 1.0, 2.0], [0, 0, 0, 1])), [0, 0, 0, 0])


def test_max_rl() -> None:
    exactly(max_rl(samples(REWARDS, GROUPS)), [-0.5, 0.5, -1, -1, 2])
    exactly(max_rl(samples(REWARDS, GROUPS), eps=2.0), [-0.25, 0.25, -0.5, -0.5, 1])
    exactly(max_rl(samples([0.0, 0.0, -1.0, 0.5], [0, 0, 1, 1])), [0, 0, 0, 0])


def test_length_shaped_grpo() -> None:
    # Best: 2, 2 with 1 and 3 tokens, mean 2. The first gets 2 (1 + 1/2) = 3, the other stays. Mean of 3, 2, 0, 0: 5/4.
    batch = samples([2.0, 2.0, 0.0, 0.0], [0] * 4, [1, 3, 1, 1])
    exactly(length_shaped_grpo(batch), [1.75, 0.75, 0.75, 0.75, -1.25, -1.25])
    exactly(length_shaped_grpo(samples([0.0, -1.0], [0, 0])), [0.5, -0.5])


def test_length_shaped_grpo_counts_tool_tokens_at_their_price() -> None:
    batch = RewardBatch(response_lengths=[3, 3], loss_mask=[[1, 0, 0], [1, 1, 1]], group_ids=[0, 0], rewards=[1.0, 1.0])
    # Costs 1 and 3: bonus 1/2 and 0, shaped 1.5 and 1. At a price of 1 both cost 3: no bonus.
    exactly(length_shaped_grpo(batch), [0.25, 0, 0, -0.25, -0.25, -0.25])
    exactly(length_shaped_grpo(batch, tool_token_cost=1.0), [0, 0, 0, 0, 0, 0])


def test_gdpo() -> None:
    # Component 1 in the group: 0, 2 -> -1/sqrt2, 1/sqrt2; component 2: equal -> 0. Sums whitened: -1/sqrt2, 1/sqrt2.
    batch = RewardComponentsBatch(
        response_lengths=[1, 1],
        loss_mask=[[1], [1]],
        group_ids=[0, 0],
        reward_components=torch.tensor([[0.0, 5.0], [2.0, 5.0]], dtype=torch.float64),
    )
    exactly(gdpo(batch), [-1 / math.sqrt(2), 1 / math.sqrt(2)])
    exactly(gdpo(batch, weights=[-3.0, 1.0]), [1 / math.sqrt(2), -1 / math.sqrt(2)])
    exactly(gdpo(batch, weights=[0.0, 1.0]), [0.0, 0.0])
    exactly(gdpo(batch, eps=0.0, batch_eps=1.0), [-1 / math.sqrt(2) / 2, 1 / math.sqrt(2) / 2])


def test_remax() -> None:
    batch = ReMaxBatch(
        response_lengths=[3, 1],
        loss_mask=[[1, 0, 1], [1]],
        token_rewards=[[1.0, 99.0, 2.0], [5.0]],
        reward_baselines=[0.5, 7.0],
    )
    found = remax(batch)
    assert found.returns.tolist() == [3.0, 0.0, 2.0, 5.0]
    assert found.advantages.tolist() == [2.5, 0.0, 1.5, -2.0]


def test_role_conditioned() -> None:
    def play(rewards: list[float], roles: list[str]) -> RoleRewardBatch:
        return RoleRewardBatch(
            response_lengths=[1] * len(rewards), loss_mask=[[1]] * len(rewards), rewards=rewards, roles=roles
        )

    found = role_conditioned(play([1.0, -1.0, 1.0], ["a", "b", "a"]), RoleBaselines(), decay=0.5)
    # a: 0 -> 1/2 -> 3/4; b: 0 -> -1/2. Each against what was known before it.
    assert found.advantages.tolist() == [1.0, -1.0, 0.5]
    assert found.baselines.as_dict() == {"a": 0.75, "b": -0.5}
    following = role_conditioned(play([0.0, 1.0], ["c", "b"]), found.baselines, decay=0.5)
    assert following.advantages.tolist() == [0.0, 1.5]
    assert following.baselines.as_dict() == {"a": 0.75, "b": 0.25, "c": 0.0}
    assert found.baselines.as_dict() == {"a": 0.75, "b": -0.5}


def test_optimal_token_baseline() -> None:
    # Uniform over two outcomes: energy 1 - 2/2 + 1/2 = 1/2 a token, so W = 1/2, 1 at positions 0, 1.
    batch = OTBBatch(
        response_lengths=[2, 1, 1],
        loss_mask=[[1, 1], [1], [1]],
        group_ids=[0, 0, 1],
        old_log_probs=torch.full((4,), math.log(0.5), dtype=torch.float64),
        sum_pi_squared=torch.full((4,), 0.5, dtype=torch.float64),
        token_rewards=torch.tensor([1.0, 3.0, 2.0, 5.0], dtype=torch.float64),
    )
    # Position 0: (4 + 2) / 2 = 3; position 1: its own return 3. The lone sample of group 1 has no baseline.
    exactly(optimal_token_baseline(batch, eps=0.0), [1, 0, -1, 5])
    exactly(optimal_token_baseline(batch, eps=0.0, zero_tail=True), [1, 3, -1, 5])


def test_raw_reward_and_placement() -> None:
    batch = RewardBatch(response_lengths=[3, 2, 0], loss_mask=[[1, 1, 0], [0, 0], []], rewards=[2.0, 3.0, 4.0])
    assert raw_reward(batch).tolist() == [2.0, 2.0, 0.0, 0.0, 0.0]
    assert place_rewards(batch).tolist() == [0.0, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("estimate", "raw"),
    [
        (lambda b, s: grpo(b, eps=0.25, singleton=s), 4.0 / 1.25),
        (lambda b, s: grpo(b, scale="none", singleton=s), 4.0),
        (lambda b, s: dr_grpo(b, singleton=s), 4.0),
        (lambda b, s: rloo(b, singleton=s), 4.0),
        (lambda b, s: opo(b, singleton=s), 4.0),
        (lambda b, s: gpg(b, f_norm=2.0, singleton=s), 2.0),
        (lambda b, s: max_rl(b, singleton=s), 4.0),
    ],
)
def test_group_of_one(estimate: Any, raw: float) -> None:
    batch = samples([4.0, 1.0, 2.0], [0, 1, 1])
    assert estimate(batch, "zero")[0] == 0.0
    assert estimate(batch, "raw")[0] == pytest.approx(raw)
    assert estimate(batch, "raw")[1:].tolist() == estimate(batch, "zero")[1:].tolist()


@pytest.mark.parametrize(
    "estimate", [grpo, dr_grpo, rloo, opo, gpg, pass_at_k, max_rl, length_shaped_grpo, lambda b: grpo(b, scale="batch")]
)
def test_unscorable_samples_are_left_out(estimate: Any) -> None:
    """A NaN reward: exactly 0 for the sample, and for the others what they get without it."""
    with_nan = estimate(samples([1.0, NAN, 3.0, 0.0, NAN, 6.0], [5, 5, 5, 9, 9, 9])).tolist()
    without = estimate(samples([1.0, 3.0, 0.0, 6.0], [5, 5, 9, 9])).tolist()
    assert with_nan == [without[0], 0.0, without[1], without[2], 0.0, without[3]]
    assert estimate(samples([NAN, NAN], [0, 0])).tolist() == [0.0, 0.0]
    assert estimate(samples([NAN, 2.0], [0, 0])).tolist() == [0.0, 0.0]


def test_unscorable_raw_reward_and_role() -> None:
    assert raw_reward(samples([NAN, 2.0], [0, 0])).tolist() == [0.0, 2.0]
    with settings(level="structure"):
        batch = RoleRewardBatch(response_lengths=[1, 1], loss_mask=[[1], [1]], rewards=[NAN, 1.0], roles=["a", "a"])
    found = role_conditioned(batch, RoleBaselines.of({"a": 0.5}), decay=0.5)
    assert found.advantages.tolist() == [0.0, 0.5]
    assert found.baselines.as_dict() == {"a": 0.75}


def test_unscorable_component() -> None:
    with settings(level="structure"):
        batch = RewardComponentsBatch(
            response_lengths=[1, 1, 1],
            loss_mask=[[1], [1], [1]],
            group_ids=[0, 0, 0],
            reward_components=torch.tensor([[0.0, NAN], [2.0, NAN], [NAN, NAN]], dtype=torch.float64),
        )
    exactly(gdpo(batch), [-1 / math.sqrt(2), 1 / math.sqrt(2), 0.0])


def test_zero_variance_and_metrics() -> None:
    batch = samples([0.7, 0.7, 1.0, 2.0, 4.0, NAN, NAN], [0, 0, 1, 1, 2, 3, 3])
    flat = zero_variance(batch)
    assert flat.tolist() == [True, True, False, False, True, True, True]
    found = reward_metrics(batch).compute()
    assert found["reward_mean"] == pytest.approx(8.4 / 5)
    assert (found["reward_max"], found["reward_min"]) == (4.0, 0.7)
    assert found["unscorable_fraction"] == pytest.approx(2 / 7)
    assert found["zero_variance_fraction"] == pytest.approx(5 / 7)


def test_without_group_ids_every_sample_is_alone() -> None:
    batch = RewardBatch(response_lengths=[1, 1], loss_mask=[[1], [1]], rewards=[1.0, 2.0])
    assert grpo(batch).tolist() == [0.0, 0.0]
    assert rloo(batch, singleton="raw").tolist() == [1.0, 2.0]
