"""GRPO with truncated importance sampling and a KL term: the life of a batch, from the sampler to the loss."""

from __future__ import annotations

import copy

from demo_support.config import DemoConfig
from demo_support.policy import Policy, score_fixed
from demo_support.sampler import Rollout
from demo_support.trainer import SampledBatch, Trainer, sampled_batch
from rollout_contract import KLBatch, Loss, Metrics, PolicyBatch, TISBatch, kl_loss, policy_loss
from rollout_contract.advantages import grpo
from rollout_contract.corrections import Truncate
from rollout_contract.kl import K2
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import PPOClip


class GRPOBatch(SampledBatch, PolicyBatch, TISBatch, KLBatch):
    """What a step trains on: the fields of every loss and correction that it feeds."""


class GRPO:
    """Trains a policy on groups of samples with a verifiable reward (arXiv:2402.03300)."""

    correction = Truncate(high=2.0)
    objective = PPOClip(clip_low=0.2, clip_high=0.28)
    kl = K2()

    def __init__(self, policy: Policy, config: DemoConfig) -> None:
        self.config = config
        self.trainer = Trainer(policy, config.policy_rate, config)
        self.policy = policy
        self.reference = copy.deepcopy(policy)

    def step(self, rollout: Rollout) -> Metrics:
        """Train on one step's rollouts: several passes over one batch, with an update each."""
        batch = self.batch(rollout)
        metrics = mismatch_metrics(batch)
        batch = batch.corrected(self.correction).weighted("token-mean")
        for _ in range(self.config.epochs):
            metrics = metrics.merge(self.trainer.update(batch, self.loss))
        return metrics

    def batch(self, rollout: Rollout) -> GRPOBatch:
        """Build, then extend by what the trainer adds before any update. Every field is fixed from here on."""
        sampled = sampled_batch(rollout, self.config.samples_per_prompt)
        return sampled.extend(
            GRPOBatch,
            rollout_log_probs=rollout.log_probs,
            old_log_probs=score_fixed(self.policy, sampled),
            ref_log_probs=score_fixed(self.reference, sampled),
            advantages=grpo(sampled),
        )

    def loss(self, batch: GRPOBatch) -> Loss:
        """Of one micro-batch, bound to the current forward pass."""
        return policy_loss(batch, self.objective) + self.config.kl_coefficient * kl_loss(batch, self.kl)
