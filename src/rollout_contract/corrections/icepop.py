"""IcePop: drop the gradient of tokens on which rollout and trainer disagree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from rollout_contract.corrections.correction import Correction
from rollout_contract.corrections.rule import CorrectionRule, log_ratio
from rollout_contract.kernels import importance
from rollout_contract.kernels.precision import widened
from rollout_contract.kernels.ratio import bounded
from rollout_contract.metrics import Metrics
from rollout_contract.mismatch import ratio_metrics
from rollout_contract.schemas import TISBatch


class IcePop(CorrectionRule):
    """Weights e^x where low <= e^x <= high and 0 elsewhere, x = old_log_probs - rollout_log_probs; arXiv:2510.18855.

    A zeroed token still counts in the denominators of the loss, as in the paper. ``Reject(statistic="ratio", low=...,
    high=...)`` drops the same tokens and takes them out of the denominators too.

    Attributes:
        low, high: the range of ratios that is kept, bounds included.
        log_ratio_bound: the log-ratio is bounded to +-this, in nats, before exp; None: to what the dtype can hold.

    Metrics, under ``icepop/``: of the ratio before any bound; see :func:`rollout_contract.mismatch.ratio_metrics`.
    """

    name = "icepop"
    formula = "r = exp(l_old - l_rollout); w = r if low <= r <= high, else 0"
    paper = "arXiv:2510.18855"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--use-tis, --custom-tis-function-path icepop_function",
        "slime": "--use-tis, --custom-tis-function-path icepop_function",
        "verl": "rollout_is=token, rollout_is_threshold=0.5_5.0",
        "TRL": "vllm_importance_sampling_mode=token_mask, use_vllm=true",
        "OpenRLHF": "--enable_vllm_is_correction, --vllm_is_correction_type icepop",
        "NeMo-RL": "truncated_importance_sampling_type=icepop",
    }

    low: NonNegativeFloat | None = 0.5
    high: PositiveFloat | None = 5.0
    log_ratio_bound: PositiveFloat | None = 20.0

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> IcePop:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: every token would be dropped")
        return self

    def __call__(self, batch: TISBatch, /) -> Correction:
        x = log_ratio(batch, self)
        weights = importance.zeroed_outside(bounded(x, self.log_ratio_bound).exp(), self.low, self.high)
        metrics = Metrics(ratio_metrics(widened(x), batch.loss_mask, self.low, self.high))
        return Correction(batch, weights=weights, metrics=metrics.prefixed("icepop"))
