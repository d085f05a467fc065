"""Soft adaptive policy optimisation: a sigmoid gate in place of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from rollout_contract.kernels.policy import soft_gate
from rollout_contract.kernels.ratio import bounded, sequence_mean_log_ratio
from rollout_contract.kernels.sequence_policy import sequence_advantages
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics, segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class SAPO(Objective):
    """-(4 / tau) sigmoid(tau (r - 1)) A, with tau by the sign of A (arXiv:2511.20347).

    At r = 1 the gradient is that of the plain policy gradient; away from 1 it fades instead of stopping.

    Attributes:
        tau_positive: sharpness of the gate for A > 0.
        tau_negative: the same for A <= 0; a larger one fades sooner.
        level: ``token``: one ratio per token. ``sequence``: the geometric mean of a sample's ratios with the mean of
            its advantages, as AReaL offers.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`. verl and SkyRL use 20, the
            others none.
    """

    name = "sapo"
    formula = "r = exp(l - l_old); L = -(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A"
    paper = "arXiv:2511.20347"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "policy_loss.loss_mode=sapo",
        "TRL": "loss_type=sapo",
        "AReaL": "use_sapo_loss=true",
        "SkyRL": "policy_loss_type=sapo",
        "Liger": "loss_type=sapo",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    tau_positive: PositiveFloat = 1.0
    tau_negative: PositiveFloat = 1.05
    level: Literal["token", "sequence"] = "token"
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        advantages = read(batch, "advantages", like=log_probs)
        if self.level == "sequence":
            log_ratio = sequence_mean_log_ratio(log_ratio, *segments(batch))
            advantages = sequence_advantages(advantages, *segments(batch))
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        loss = -soft_gate(ratio, advantages, self.tau_positive, self.tau_negative) * advantages
        return Terms(loss, Metrics(ratio_metrics(log_ratio, batch.loss_mask, self.log_ratio_bound)))
