"""Faults that users of trainers reported about advantages, returns and whitening."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import errors
from rollout_contract.advantages import (
    dr_grpo,
    gae,
    gpg,
    grpo,
    max_rl,
    opo,
    optimal_token_baseline,
    pass_at_k,
    place_rewards,
    raw_reward,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    reward_metrics,
    rloo,
    whiten,
    zero_variance,
)
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import PPOClip
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import GAEBatch, OTBBatch, PolicyBatch, RewardBatch, TokenRewardBatch

GROUP_ESTIMATORS = [grpo, dr_grpo, rloo, opo, gpg, pass_at_k, max_rl, reinforce_plus_plus_baseline]


def rewarded(rewards: Any, groups: list[int], **fields: Any) -> RewardBatch:
    """One trained token a sample."""
    count = len(groups)
    mask = fields.pop("loss_mask", torch.ones(count, dtype=torch.bool))
    return RewardBatch(response_lengths=[1] * count, loss_mask=mask, group_ids=groups, rewards=rewards, **fields)


def test_case_005() -> None:
    """pymarl2#46: advantages that still hang on the critic make the second epoch fail; the build cuts them."""
    critic = torch.nn.Linear(1, 1)
    values = critic(torch.ones(2, 1))[:, 0]
    step = GAEBatch(response_lengths=[2], loss_mask=[[1, 1]], token_rewards=[[0.0, 1.0]], values=values)
    advantages = gae(step).advantages
    assert not advantages.requires_grad
    batch = PolicyBatch(
        response_lengths=[2], loss_mask=[[1, 1]], old_log_probs=[[-1.0, -1.0]], advantages=torch.ones(2) - values
    ).weighted("token-mean")
    log_probs = torch.tensor([-1.0, -1.0], requires_grad=True)
    for _ in range(2):
        policy_loss(batch.bind(log_probs=log_probs * 1.0), PPOClip()).backward()
    assert critic.weight.grad is None


def test_case_013() -> None:
    """pytorch/rl#1243 and others: [n] times [n, 1] is [n, n], with mean -4 where -14/3 is right."""
    log_probs, column = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([[1.0], [2.0], [3.0]])
    assert float((log_probs * column).mean()) == -4.0
    fields: dict[str, Any] = {"response_lengths": [3], "loss_mask": [[1, 1, 1]], "old_log_probs": log_probs}
    with pytest.raises(errors.ShapeError, match=r"squeeze\(-1\)"):
        PolicyBatch(**fields, advantages=column)
    with pytest.raises(errors.ShapeError, match=r"shape \[3, 1\]"):
        whiten(RolloutBatch(response_lengths=[3], loss_mask=[[1, 1, 1]]), column)
    with pytest.raises(errors.ShapeError, match=r"squeeze\(-1\)"):
        rewarded(column, [0, 0, 0])
    batch = PolicyBatch(**fields, advantages=column[:, 0])
    assert float((batch.old_log_probs * batch.advantages).mean()) == pytest.approx(-14 / 3)


def test_case_018() -> None:
    """verl#1440: values in another row order than the mask have the right shape; the row ids tell."""

    class Both(RewardBatch, GAEBatch):
        pass

    class Values(TokenRewardBatch):
        pass

    step = RewardBatch(response_lengths=[1, 1], loss_mask=[[1], [1]], rewards=[1.0, 2.0])
    scored = GAEBatch(
        response_lengths=[1, 1],
        loss_mask=[[1], [1]],
        row_ids=step.row_ids,
        token_rewards=[[1.0], [2.0]],
        values=[[0.1], [0.2]],
    )
    assert gae(step.merge(scored, Both), lam=1.0).advantages.tolist() == pytest.approx([0.9, 1.8])
    with pytest.raises(errors.RowsError):
        step.merge(scored.select([1, 0]), Both)


def test_case_019() -> None:
    """verl#4962: group statistics stay where the scores are; two devices are refused before any arithmetic."""
    device = torch.device("meta")
    mask = torch.ones(4, dtype=torch.bool, device=device)
    step = rewarded(torch.zeros(4, device=device), [0, 0, 1, 1], loss_mask=mask)
    for estimate in [*GROUP_ESTIMATORS, raw_reward, place_rewards, zero_variance]:
        result: Tensor = estimate(step)
        assert (result.device, tuple(result.shape)) == (device, (4,))
    critic = GAEBatch(
        response_lengths=[4],
        loss_mask=mask,
        token_rewards=torch.zeros(4, device=device),
        values=torch.zeros(4, device=device),
    )
    assert {part.device for part in gae(critic)} == {device}
    assert reinforce_plus_plus(critic).device == device
    with pytest.raises(errors.DeviceError) as caught:
        rewarded(torch.zeros(4), [0, 0, 1, 1], loss_mask=mask, loss_weights=torch.zeros(4, device=device))
    assert (caught.value.field, caught.value.found) == ("rewards", "cpu")


@pytest.mark.parametrize("estimate", GROUP_ESTIMATORS)
def test_case_048(estimate: Any) -> None:
    """ROLL#475, NeMo-RL#1864, OpenRLHF#1250: the standard deviation of one value is NaN."""
    assert torch.tensor([1.0, 2.0])[:1].std(correction=0) == 0.0
    alone = rewarded([1.0, 5.0, 3.0], [0, 1, 1])
    assert torch.isfinite(estimate(alone)).all()
    if estimate is not reinforce_plus_plus_baseline:
        assert estimate(alone)[0] == 0.0
    assert estimate(rewarded([1.0], [0])).tolist() == [0.0]
    one_token = RolloutBatch(response_lengths=[2], loss_mask=[[1, 0]])
    assert whiten(one_token, torch.tensor([3.0, 4.0])).tolist() == [3.0, 0.0]


def test_case_049() -> None:
    """miles#701: seven float32 rewards of 0.7 have a standard deviation of 6e-8, and advantages of 0.8."""
    rewards = torch.full((7,), 0.7)
    textbook = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    assert float(textbook[0].abs()) > 0.5
    step = rewarded([*rewards.tolist(), 0.0, 1.0], [0] * 7 + [1, 1])
    for estimate in [lambda batch: grpo(batch, eps=1e-8), lambda batch: grpo(batch, eps=0.0), *GROUP_ESTIMATORS]:
        result: Tensor = estimate(step)
        assert result[:7].tolist() == [0.0] * 7
        assert result[8] > 0
    assert zero_variance(step).tolist() == [True] * 7 + [False, False]
    assert reward_metrics(step).compute()["zero_variance_fraction"] == pytest.approx(7 / 9)


def test_case_050() -> None:
    """AReaL#1346, ROLL#447: finite numbers at masked tokens changed what trained tokens got."""
    step = GAEBatch(
        response_lengths=[3], loss_mask=[[1, 1, 0]], token_rewards=[[0.0, 1.0, 0.0]], values=[[0.0, 0.0, 100.0]]
    )
    found = gae(step, gamma=1.0, lam=0.95)
    assert found.advantages.tolist() == pytest.approx([0.95, 1.0, 0.0])
    sequence = RolloutBatch(response_lengths=[4], loss_mask=[[1, 1, 0, 0]])
    advantages = torch.tensor([1.0, 1.0, 10.0, 10.0])
    assert sequence.layout.mean(advantages, sequence.loss_mask).tolist() == [1.0]
    white = [whiten(sequence, torch.tensor([1.0, 3.0, x, x])).tolist() for x in (0.0, 1e30, float("nan"))]
    assert white[0] == white[1] == white[2]


def test_case_052() -> None:
    """miles#1827, verl#2337: a tool's tokens are no transitions, and the reward is not put on one of them."""
    step = RewardBatch(response_lengths=[5], loss_mask=[[1, 0, 0, 1, 0]], rewards=[1.0])
    placed = place_rewards(step)
    assert placed.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]

    class Both(RewardBatch, GAEBatch):
        pass

    critic = step.extend(Both, token_rewards=placed, values=[0.5, 9.0, 9.0, 0.25, 9.0])
    short = GAEBatch(response_lengths=[2], loss_mask=[[1, 1]], token_rewards=[[0.0, 1.0]], values=[[0.5, 0.25]])
    kept = critic.loss_mask
    for gamma in (0.0, 0.5, 1.0):
        found, expected = gae(critic, gamma=gamma, lam=0.5), gae(short, gamma=gamma, lam=0.5)
        assert found.advantages[kept].tolist() == expected.advantages.tolist()
        assert found.returns[kept].tolist() == expected.returns.tolist()
        assert found.returns[kept][-1] == 1.0


def test_case_079() -> None:
    """NeMo-RL#2787: one advantage per sample was expanded with stride 0, so a write to one token hit them all."""
    step = RewardBatch(response_lengths=[3, 3], loss_mask=[[1] * 3] * 2, group_ids=[0, 0], rewards=[1.0, 2.0])
    advantages = dr_grpo(step)
    advantages[1] = -9.0
    assert advantages.tolist() == [-0.5, -9.0, -0.5, 0.5, 0.5, 0.5]


def test_case_080() -> None:
    """slime#2114: making token rewards from a stored KL edited the KL that was logged."""
    kl = torch.tensor([1.0, 1.0])
    step = RewardBatch(response_lengths=[2], loss_mask=[[1, 1]], rewards=[5.0])
    token_rewards = place_rewards(step) - 0.1 * kl
    assert token_rewards.tolist() == pytest.approx([-0.1, 4.9])
    batch = TokenRewardBatch(response_lengths=[2], loss_mask=[[1, 1]], token_rewards=token_rewards)
    reinforce_plus_plus(batch)
    assert kl.tolist() == [1.0, 1.0]
    assert batch.token_rewards.tolist() == pytest.approx([-0.1, 4.9])


def test_no_estimator_edits_what_it_reads() -> None:
    """The same kind as slime#2114 and AReaL's in-place masking: inputs of a baseline keep their values."""
    fields = {"old_log_probs": [[-1.0, -2.0]], "token_rewards": [[0.0, 1.0]], "sum_pi_squared": [[0.3, 0.4]]}
    batch = OTBBatch(response_lengths=[2], loss_mask=[[1, 0]], group_ids=[0], **fields)
    optimal_token_baseline(batch, zero_tail=True)
    for name, rows in fields.items():
        assert getattr(batch, name).tolist() == torch.tensor(rows[0]).tolist()
