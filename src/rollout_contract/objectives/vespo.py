"""VESPO: a gamma-shaped weight on the probability ratio of the whole response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded
from rollout_contract.kernels.sequence_policy import GammaShape, gamma_weights, summed_log_weight
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics, segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class VESPO(Objective):
    """-sg(phi) A log_probs with phi = w^k exp(lambda (1 - w)), w the product of the ratios (arXiv:2602.10693).

    Importance weights of the batch enter w as factors, so they are not applied again. log w is kept within
    [log 1e-8, 20]; a weight of 0 counts as 1e-8.

    Attributes:
        k_positive, lambda_positive: the shape for A >= 0.
        k_negative, lambda_negative: the shape for A < 0.
        log_ratio_bound: each token's log-ratio is bounded to +-this, in nats, before the sum.
    """

    name = "vespo"
    formula = "w = exp(sum_m(l - l_old)); phi = w^k exp(lambda (1 - w)), (k, lambda) by the sign of A; L = -sg(phi) A l"
    paper = "arXiv:2602.10693"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "loss_type=vespo", "Liger": "loss_type=vespo"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch
    correction: ClassVar[Consumption] = "inside"

    k_positive: NonNegativeFloat = 2.0
    lambda_positive: NonNegativeFloat = 3.0
    k_negative: NonNegativeFloat = 3.0
    lambda_negative: NonNegativeFloat = 2.0
    log_ratio_bound: float = Field(default=20.0, gt=0.0)

    def weights(self, batch: PolicyBatch, /) -> Tensor:
        """[tokens] phi, without a gradient; one value per sample for advantages of one sign in it."""
        log_ratio = _log_ratio(batch)
        log_weight = summed_log_weight(
            bounded(log_ratio, self.log_ratio_bound),
            _correction_weights(batch, log_ratio),
            *segments(batch),
            floor=1e-8,
            ceiling=20.0,
        )
        return gamma_weights(
            log_weight,
            read(batch, "advantages", like=log_ratio),
            GammaShape(self.k_positive, self.lambda_positive),
            GammaShape(self.k_negative, self.lambda_negative),
        )

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        phi = self.weights(batch)
        found = ratio_metrics(_log_ratio(batch), mask, self.log_ratio_bound) | {"phi": metrics.mean(phi, mask)}
        return Terms(score_function(log_probs, read(batch, "advantages", like=log_probs), phi), Metrics(found))


def _log_ratio(batch: PolicyBatch) -> Tensor:
    log_probs = read(batch, "log_probs").detach()
    return log_probs - read(batch, "old_log_probs", like=log_probs)


def _correction_weights(batch: PolicyBatch, like: Tensor) -> Tensor:
    if batch.has("correction_weights"):
        return read(batch, "correction_weights", like=like)
    return torch.ones_like(like)
