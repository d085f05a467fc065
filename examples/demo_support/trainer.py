"""What GRPO and distillation share: the batch as the sampler hands it over, and one update of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.optim.lr_scheduler import LinearLR

from demo_support.config import DemoConfig
from demo_support.policy import Policy, score
from demo_support.sampler import Rollout
from rollout_contract import Fixed, Loss, Metrics, RewardBatch
from rollout_contract.losses.entropy import entropy_metrics
from rollout_contract.schemas import LiveBatch, ObservedEntropyBatch


class SampledBatch(RewardBatch, LiveBatch, ObservedEntropyBatch):
    """Rollouts with their rewards. Its own field holds the token ids of prompts and responses, for models to score.

    ``log_probs`` and ``observed_entropy`` come with each forward pass: the first is trained, the second only plotted.
    """

    input_ids: Fixed[Int[Tensor, "sequence"]]


BatchT = TypeVar("BatchT", bound=SampledBatch)


def sampled_batch(rollout: Rollout, group_size: int = 1) -> SampledBatch:
    """Build: the engine's ragged lists become packed, checked, fixed tensors."""
    return SampledBatch(
        response_lengths=rollout.response_lengths,
        prompt_lengths=rollout.prompt_lengths,
        group_ids=[row // group_size for row in range(len(rollout.prompts))],
        loss_mask=rollout.loss_mask,
        input_ids=rollout.input_ids,
        rewards=rollout.rewards,
    )


class Trainer:
    """A policy and its optimizer, whose learning rate rises over the first updates."""

    def __init__(self, policy: Policy, learning_rate: float, config: DemoConfig) -> None:
        self.policy = policy
        self.config = config
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
        self.schedule = LinearLR(self.optimizer, start_factor=0.1, total_iters=config.rate_rises_over)

    def update(self, batch: BatchT, loss_of: Callable[[BatchT], Loss]) -> Metrics:
        """One update from a weighted step: split, bind, loss, backward; then the optimizer.

        The weights were fixed for the whole step, so loss and gradient do not depend on the size of the micro-batches.
        """
        metrics = Metrics()
        for micro in batch.split(max_tokens=self.config.micro_batch_tokens):
            scores = score(self.policy, micro)
            micro = micro.bind(log_probs=scores.log_probs, observed_entropy=scores.entropy)
            loss = loss_of(micro)
            loss.backward()
            metrics = metrics.merge(loss.metrics).merge(entropy_metrics(micro))
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_gradient_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return metrics
