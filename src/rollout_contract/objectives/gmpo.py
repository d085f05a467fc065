"""Geometric-mean policy optimisation: the geometric mean of clipped token ratios, one per sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rollout_contract.kernels.ratio import bounded
from rollout_contract.kernels.sequence_policy import (
    geometric_mean_log_ratio,
    geometric_mean_weights,
    sequence_advantages,
)
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import bound_metrics, ratio_metrics, segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class GMPO(Objective):
    """-A_i exp(mean over the trained tokens of u), u = l - l_old clipped in log space (arXiv:2507.20673).

    For A_i > 0 u is at most ``clip_high``, for A_i < 0 at least ``-clip_low``. A_i is the sample's mean advantage; the
    objective is defined for advantages that are constant within a sample. At A_i = 0 loss and gradient are 0, so the
    systems' different rules for it (verl: u = 0; TRL: as for A_i < 0) change nothing.

    Use it with "seq-mean-token-mean". verl and TRL also count samples without trained tokens
    (``Aggregation(count_empty=True)``). Importance weights enter as their geometric mean over the sample, as in verl.

    Attributes:
        clip_low, clip_high: bounds of a token's log-ratio, in nats; the paper uses 0.4 and 0.4.
        log_ratio_bound: bounds the mean to +-this before exp. Neither system has one.
    """

    name = "geo_mean"
    formula = "u = min(l - l_old, eps_high) for A > 0, max(l - l_old, -eps_low) else; L = -mean_m(A) exp(mean_m(u))"
    paper = "arXiv:2507.20673"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "policy_loss.loss_mode=geo_mean", "TRL": "experimental.gmpo"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch
    correction: ClassVar[Consumption] = "inside"

    clip_low: NonNegativeFloat = 0.4
    clip_high: NonNegativeFloat = 0.4
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        advantages = sequence_advantages(read(batch, "advantages", like=log_probs), *segments(batch))
        mean = geometric_mean_log_ratio(log_ratio, advantages, *segments(batch), self.clip_low, self.clip_high)
        loss = -advantages * bounded(mean, self.log_ratio_bound).exp()
        found = bound_metrics(log_ratio, -self.clip_low, self.clip_high, mask) | ratio_metrics(log_ratio, mask)
        return Terms(self._weighted(batch, loss), Metrics(found))

    def _weighted(self, batch: PolicyBatch, loss: Tensor) -> Tensor:
        if not batch.has("correction_weights"):
            return loss
        weights = read(batch, "correction_weights", like=loss)
        return loss * geometric_mean_weights(weights, *segments(batch))
