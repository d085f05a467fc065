"""The likelihood of positive examples: the mean over them, however the step is weighted or split."""

from __future__ import annotations

import pytest
import torch

from rollout_contract import RolloutBatch, policy_loss
from rollout_contract.objectives import PositiveNLL, positive_example_weights
from rollout_contract.schemas import LiveBatch, PositiveBatch, RewardBatch


class RewardedStep(RewardBatch, LiveBatch):
    """Rewards, before the weights are made."""


class Step(RewardedStep, PositiveBatch):
    """With the weights."""


MASKS = [[1, 1, 0], [1], [1, 1], []]
LOG_PROBS = torch.tensor([-1.0, -2.0, -9.0, -4.0, -0.5, -0.25], dtype=torch.float64)


def step(rewards: list[float], mode: str) -> Step:
    batch = RewardedStep(
        response_lengths=[3, 1, 2, 0], loss_mask=MASKS, rewards=torch.tensor(rewards, dtype=torch.float64)
    ).weighted(mode)  # type: ignore[arg-type]
    return batch.extend(Step, positive_weights=positive_example_weights(batch))


def loss_of(batch: Step, log_probs: torch.Tensor) -> torch.Tensor:
    return policy_loss(batch.bind(log_probs=log_probs), PositiveNLL()).value


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token-mean", (1.0 + 2.0 + 0.5 + 0.25) / 4), ("seq-mean-token-mean", (1.5 + 0.375) / 2)],
)
def test_it_is_the_mean_over_the_positive_examples(mode: str, expected: float) -> None:
    assert loss_of(step([1.0, 0.0, 0.5, 1.0], mode), LOG_PROBS.clone().requires_grad_()).item() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "sum"])
def test_a_split_changes_nothing(mode: str) -> None:
    batch, log_probs = step([1.0, 0.0, 0.5, 1.0], mode), LOG_PROBS.clone().requires_grad_()
    parts = batch.split(samples=1)
    rows = log_probs.split([part.layout.num_tokens for part in parts])
    pieces = torch.stack([loss_of(part, row) for part, row in zip(parts, rows, strict=True)])
    torch.testing.assert_close(pieces.sum(), loss_of(batch, log_probs))


def test_without_positive_examples_it_is_zero() -> None:
    assert loss_of(step([0.0, -1.0, 0.0, 0.0], "token-mean"), LOG_PROBS.clone().requires_grad_()) == 0.0


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_the_weights_are_made_from_rewards() -> None:
    batch = RolloutBatch(response_lengths=[1], loss_mask=[[1]])
    with pytest.raises(ValueError, match="rewards"):
        positive_example_weights(batch)  # type: ignore[arg-type]
