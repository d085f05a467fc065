"""The unclipped importance-sampled surrogate, and its on-policy special case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveFloat

from rollout_contract.kernels.ratio import bounded, straight_through_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import AdvantageBatch, PolicyBatch


class ImportanceSampling(Objective):
    """-r A with r = exp(log_probs - old_log_probs): unbiased and unclipped; its gradient is -r A.

    Tinker takes the ratio against the sampler: build the batch with the sampler's log-probs as ``old_log_probs``.

    Attributes:
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`. Tinker and SkyRL have none.
    """

    name = "importance_sampling"
    formula = "r = exp(l - l_old); L = -r A"
    paper = "https://tinker-docs.thinkingmachines.ai/losses"
    known_as: ClassVar[Mapping[str, str]] = {
        "Tinker": "loss_fn=importance_sampling",
        "SkyRL": "policy_loss_type=importance_sampling",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        loss = -bounded(log_ratio, self.log_ratio_bound).exp() * read(batch, "advantages", like=log_probs)
        return Terms(loss, Metrics(ratio_metrics(log_ratio, batch.loss_mask, self.log_ratio_bound)))


class OnPolicyRatio(Objective):
    """-r A with r = exp(log_probs - sg(log_probs)), which is 1: the policy gradient, with a loss that reads -mean(A).

    What is left of PPO when the old scores are not computed because every batch is used for one update.
    """

    name = "on_policy_ratio"
    formula = "r = exp(l - sg(l)) = 1; L = -r A"
    paper = "arXiv:2402.03300"
    known_as: ClassVar[Mapping[str, str]] = {
        "slime": "(no old log-probs)",
        "verl": "(on-policy training: no old log-probs)",
        "TRL": "(num_iterations=1: no old log-probs)",
        "NeMo-RL": "force_on_policy_ratio=true",
        "torchforge": "SimpleGRPOLoss",
    }
    reads: ClassVar[type[RolloutBatch]] = AdvantageBatch

    def terms(self, batch: AdvantageBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        ratio = straight_through_log_ratio(log_probs, log_probs.new_zeros(())).exp()
        return Terms(-ratio * read(batch, "advantages", like=log_probs), Metrics())
