"""GAE beyond its formula: tool tokens, cut responses, VAPO's lambdas, whole and in parts."""

from __future__ import annotations

import pytest
import torch

from rollout_contract.advantages import LengthAdaptive, discounted_returns, gae, place_rewards
from rollout_contract.schemas import BootstrappedGAEBatch, GAEBatch, RewardBatch
from tests.advantages.batches import Case, over_cases


def one_response(mask: list[int], rewards: list[float], values: list[float]) -> GAEBatch:
    return GAEBatch(response_lengths=[len(mask)], loss_mask=[mask], token_rewards=[rewards], values=[values])


def test_by_hand() -> None:
    # gamma 1/2, lambda 1/2: d = (1 + 1 - 4, 0 + 3 - 2, 8 - 6) = (-2, 1, 2); A = (-2 + 1.5/4, 1 + 2/4, 2).
    found = gae(one_response([1, 1, 1], [1.0, 0.0, 8.0], [4.0, 2.0, 6.0]), gamma=0.5, lam=0.5)
    assert found.advantages.tolist() == [-1.625, 1.5, 2.0]
    assert found.returns.tolist() == [2.375, 3.5, 8.0]


def test_a_tool_call_changes_nothing() -> None:
    """With or without tokens of a tool in between, and after the end, the trained ones get the same."""
    plain = gae(one_response([1, 1, 1], [1.0, 0.0, 8.0], [4.0, 2.0, 6.0]), gamma=0.9, lam=0.8)
    mask = [0, 1, 0, 0, 1, 1, 0]
    tools = one_response(mask, [9.0, 1.0, 9.0, 9.0, 0.0, 8.0, 9.0], [7.0, 4.0, 7.0, 7.0, 2.0, 6.0, 7.0])
    found = gae(tools, gamma=0.9, lam=0.8)
    kept = torch.tensor(mask, dtype=torch.bool)
    assert found.advantages[kept].tolist() == plain.advantages.tolist()
    assert found.returns[kept].tolist() == plain.returns.tolist()


def test_one_step_and_monte_carlo() -> None:
    batch = one_response([1, 1, 1], [1.0, 0.0, 8.0], [4.0, 2.0, 6.0])
    assert gae(batch, lam=0.0).advantages.tolist() == [1 + 2 - 4.0, 6 - 2.0, 8 - 6.0]
    assert gae(batch, lam=1.0).returns.tolist() == [9.0, 8.0, 8.0]
    assert gae(batch, gamma=0.0, lam=0.9).returns.tolist() == [1.0, 0.0, 8.0]


def test_a_response_that_was_cut_off_goes_on_with_its_final_value() -> None:
    fields = {"response_lengths": [2, 2], "loss_mask": [[1, 0], [1, 1]], "values": [[1.0, 5.0], [1.0, 2.0]]}
    batch = BootstrappedGAEBatch(**fields, token_rewards=[[0.0, 0.0], [0.0, 0.0]], final_values=[10.0, 0.0])
    # First: d = 0.5 x 10 - 1. Second: d = (0.5 x 2 - 1, -2), A = (0 + 0.25 x -2, -2).
    found = gae(batch, gamma=0.5, lam=0.5)
    assert found.advantages.tolist() == [4.0, 0.0, -0.5, -2.0]
    assert gae(batch, gamma=0.5, lam=0.5, masked="step").advantages[0] == 0.25 * 5 - 1


def test_length_adaptive_lambda() -> None:
    counts = torch.tensor([0.0, 10.0, 20.0, 400.0], dtype=torch.float64)
    assert LengthAdaptive(alpha=0.05).of(counts).tolist() == [0.0, 0.0, 0.0, pytest.approx(0.95)]
    batch = one_response([1, 0, 1, 1], [1.0, 0.0, 0.0, 8.0], [4.0, 0.0, 2.0, 6.0])
    # Three trained tokens, alpha 2/3: 1 - 1 / 2 = 1/2.
    adaptive = gae(batch, gamma=0.5, lam=LengthAdaptive(alpha=2 / 3), value_lam=1.0)
    assert adaptive.advantages.tolist() == pytest.approx(gae(batch, gamma=0.5, lam=0.5).advantages.tolist())
    assert adaptive.returns.tolist() == gae(batch, gamma=0.5, lam=1.0).returns.tolist()


@over_cases
def test_samples_do_not_see_each_other(case: Case) -> None:
    whole = gae(case.batch(), gamma=0.9, lam=0.7)
    parts = [gae(part, gamma=0.9, lam=0.7) for part in case.batch()]
    for together, apart in zip(whole, zip(*parts, strict=True), strict=False):
        torch.testing.assert_close(together, torch.cat(apart), rtol=1e-12, atol=1e-12)


def test_long_response_in_float32_equals_the_sequential_form() -> None:
    generator = torch.Generator().manual_seed(0)
    length = 10_000
    values = torch.randn(length, generator=generator)
    mask = torch.rand(length, generator=generator) < 0.7
    batch = RewardBatch(response_lengths=[length], loss_mask=mask, rewards=[1.0])
    schema = type("Both", (RewardBatch, GAEBatch), {"__module__": __name__})
    found = gae(batch.extend(schema, token_rewards=place_rewards(batch), values=values), gamma=1.0, lam=0.99)
    advantages, later, next_value, reward = [0.0] * length, 0.0, 0.0, 1.0
    for t in reversed(range(length)):
        if mask[t]:
            later = reward + next_value - float(values[t]) + 0.99 * later
            advantages[t], next_value, reward = later, float(values[t]), 0.0
    torch.testing.assert_close(found.advantages.double(), torch.tensor(advantages).double(), rtol=1e-4, atol=1e-4)


def test_reset_hides_the_reward_from_tokens_before_a_tool_call() -> None:
    batch = one_response([1, 0, 1], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    assert discounted_returns(batch, gamma=0.5).tolist() == [0.5, 0.0, 1.0]
    assert discounted_returns(batch, gamma=0.5, masked="step").tolist() == [0.25, 0.0, 1.0]
    assert discounted_returns(batch, gamma=0.5, masked="reset").tolist() == [0.0, 0.0, 1.0]
