"""On-policy distillation: a smaller student samples, and a teacher scores the student's own tokens."""

from __future__ import annotations

from demo_support.config import DemoConfig
from demo_support.policy import Policy, score_fixed
from demo_support.sampler import Rollout
from demo_support.trainer import SampledBatch, Trainer, sampled_batch
from rollout_contract import Loss, Metrics, OPDBatch, PolicyBatch, TISBatch, policy_loss
from rollout_contract.corrections import Truncate
from rollout_contract.distillation import opd_advantages, reverse_kl_metrics
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import PPOClip


class TaughtBatch(SampledBatch, OPDBatch, TISBatch):
    """Rollouts of the student, scored by sampler, student and teacher."""


class DistillationBatch(TaughtBatch, PolicyBatch):
    """The same with advantages, which is what the loss reads."""


class Distillation:
    """Trains a student towards a teacher by the reverse KL of the tokens that the student samples.

    The rewards ride along for the plot; no loss reads them.
    """

    correction = Truncate(high=2.0)
    objective = PPOClip(clip_low=0.2, clip_high=0.28)

    def __init__(self, student: Policy, teacher: Policy, config: DemoConfig) -> None:
        self.config = config
        self.trainer = Trainer(student, config.student_rate, config)
        self.student = student
        self.teacher = teacher

    def step(self, rollout: Rollout) -> Metrics:
        """Train on one step's rollouts: several passes over one batch, with an update each."""
        batch = self.batch(rollout)
        metrics = mismatch_metrics(batch).merge(reverse_kl_metrics(batch))
        batch = batch.corrected(self.correction(batch)).weighted("token-mean")
        for _ in range(self.config.epochs):
            metrics = metrics.merge(self.trainer.update(batch, self.loss))
        return metrics

    def batch(self, rollout: Rollout) -> DistillationBatch:
        """Build, extend by the scores, and extend again by the advantages that are made of them."""
        sampled = sampled_batch(rollout)
        taught = sampled.extend(
            TaughtBatch,
            rollout_log_probs=rollout.log_probs,
            old_log_probs=score_fixed(self.student, sampled),
            teacher_log_probs=score_fixed(self.teacher, sampled),
        )
        return taught.extend(DistillationBatch, advantages=opd_advantages(taught))

    def loss(self, batch: DistillationBatch) -> Loss:
        """Of one micro-batch, bound to the current forward pass."""
        return policy_loss(batch, self.objective)
