"""M2PO: bound the second moment of the log-ratio over a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveFloat

from rollout_contract import metrics
from rollout_contract.corrections.correction import Correction
from rollout_contract.corrections.rule import CorrectionRule, log_ratio
from rollout_contract.kernels import importance
from rollout_contract.kernels.precision import widened
from rollout_contract.metrics import Metrics
from rollout_contract.schemas import TISBatch


class M2PO(CorrectionRule):
    """A new mask without the largest mismatches, so that the mean of x^2 over the kept tokens is below a threshold.

    With x = old_log_probs - rollout_log_probs in nats; the smallest number of tokens is dropped and at least one stays.
    Tokens with equal x^2 go together, so the choice does not depend on their order. It is made over the batch that it
    is called with: call it before the step is split. Source: arXiv:2510.01161.

    Attributes:
        threshold: bound of the second moment, in nats squared.

    Metrics, under ``m2po/``: ``second_moment`` before anything is dropped, and the fraction ``rejected`` of tokens.
    """

    name = "m2po"
    formula = "the mask loses the largest x^2 until mean x^2 <= threshold, x = l_old - l_rollout"
    paper = "arXiv:2510.01161"
    known_as: ClassVar[Mapping[str, str]] = {"AReaL": "use_decoupled_loss=true, m2_threshold"}

    threshold: PositiveFloat = 0.04

    def __call__(self, batch: TISBatch, /) -> Correction:
        x = widened(log_ratio(batch, self))
        kept = importance.second_moment_mask(x, batch.loss_mask, self.threshold)
        found = {
            "second_moment": metrics.mean(x.square(), batch.loss_mask),
            "rejected": metrics.fraction(kept.logical_not(), batch.loss_mask),
        }
        return Correction(batch, mask=kept, metrics=Metrics(found).prefixed("m2po"))
