"""The policy gradient with an importance weight against the rollout policy that is 0 outside a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, PositiveFloat

from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import bound_metrics, ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import RolloutPolicyBatch


class RolloutIS(Objective):
    """-sg(r 1[ratio_min < r < ratio_max]) A log_probs, with r = exp(log_probs - rollout_log_probs); bounds are strict.

    A dropped token stays in the denominators of the loss: it is dropped by the live policy, not by the step.

    Attributes:
        ratio_min, ratio_max: the range outside which a token is dropped; SkyRL writes 1 - eps_low and 1 + eps_high.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`.
    """

    name = "rollout_is"
    formula = "r = exp(l - l_rollout); L = -sg(r 1[ratio_min < r < ratio_max]) A l"
    paper = "https://github.com/NovaSky-AI/SkyRL"
    known_as: ClassVar[Mapping[str, str]] = {"SkyRL": "policy_loss_type=rollout_is"}
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    ratio_min: float = Field(default=0.8, ge=0.0, lt=1.0)
    ratio_max: float = Field(default=1.28, gt=1.0)
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        log_ratio = log_probs.detach() - read(batch, "rollout_log_probs", like=log_probs)
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        weights = ratio.where((ratio > self.ratio_min) & (ratio < self.ratio_max), 0.0)
        loss = score_function(log_probs, read(batch, "advantages", like=log_probs), weights)
        found = bound_metrics(ratio, self.ratio_min, self.ratio_max, mask)
        return Terms(loss, Metrics(found | ratio_metrics(log_ratio, mask, self.log_ratio_bound)))
