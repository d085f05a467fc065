"""Rejection sampling: take tokens or whole sequences out of the mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import PositiveFloat, model_validator
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.corrections.correction import Correction
from rollout_contract.corrections.rule import CorrectionRule, log_ratio
from rollout_contract.kernels import importance, kl
from rollout_contract.kernels.precision import widened
from rollout_contract.metrics import Metrics
from rollout_contract.mismatch import samples_with, saturated
from rollout_contract.schemas import TISBatch

Statistic: TypeAlias = Literal["ratio", "k1", "k2", "k3", "reverse_k3"]
RejectLevel: TypeAlias = Literal["token", "sequence-sum", "sequence-mean", "sequence-max", "sequence-every"]

_STATISTICS: Mapping[Statistic, Callable[[Tensor], Tensor]] = {
    # A ratio is gathered over a sequence as a log, so that a product neither overflows nor vanishes on the way.
    "ratio": lambda log_ratio: log_ratio,
    # The kernels take the log-ratio of the policy that sampled, the rollout's, to the other: -x.
    "k1": lambda log_ratio: kl.k1(-log_ratio),
    "k2": lambda log_ratio: kl.k2(-log_ratio),
    "k3": lambda log_ratio: kl.k3(-log_ratio),
    "reverse_k3": kl.k3,
}


class Verdict(NamedTuple):
    """Per token, or per sample: the statistic, and on which side of the range it lies.

    Attributes:
        values: the statistic.
        high, low: bool, where something lies above or below the range.
        present: bool, the tokens that are trained, or the samples that have such tokens.
    """

    values: Tensor
    high: Tensor
    low: Tensor
    present: Tensor


class Reject(CorrectionRule):
    """A new mask without the tokens, or sequences, whose statistic lies outside ``[low, high]``.

    The weights stay as they are: a rejected token leaves the numerators and, since the weights of the loss are computed
    after the correction, its denominators too. ``Truncate(high=None) & Reject(...)`` is masked importance sampling
    (MIS). With x = old_log_probs - rollout_log_probs:

    Attributes:
        statistic: ``ratio`` e^x; ``k1`` -x; ``k2`` x^2 / 2; ``k3`` e^x - 1 - x; ``reverse_k3`` e^-x - 1 + x.
        level: ``token``; or all tokens of a sequence together, by the sum, mean or maximum of the statistic over its
            trained tokens (of a ratio: the product, the geometric mean, the largest); ``sequence-every``: a sequence
            stays if each of its tokens lies in the range (a veto, or a test for outliers).
        low, high: the range that is kept, bounds included, in the unit of the statistic; at least one is needed.
        log_ratio_bound: x is bounded to +-this, in nats, first; None turns that off.

    Metrics, under ``reject/{statistic}/{level}/``: ``mean``, ``min``, ``max`` of the statistic, and the fractions
    ``rejected``, ``high`` and ``low`` of tokens or (sequence levels) of sequences; ``tokens_rejected`` is of tokens.
    """

    name = "reject"
    formula = "x = l_old - l_rollout; the mask is narrowed to low <= s(x) <= high, s = e^x | -x | x^2 / 2 | e^x - 1 - x"
    paper = "https://verl.readthedocs.io/en/latest/algo/rollout_corr.html"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--use-tis, --custom-tis-function-path compute_mis_weights_with_cp, use_rs=true",
        "slime": "--use-tis, --custom-tis-function-path compute_mis_weights_with_cp, use_rs=true",
        "verl": "rollout_rs=token_k1 | token_k3 | seq_sum_k1 | seq_mean_k1 | seq_max_k2, rollout_rs_threshold",
        "AReaL": "use_decoupled_loss=true, rejection_sampling.upper",
    }

    statistic: Statistic = "ratio"
    level: RejectLevel = "token"
    low: float | None = None
    high: float | None = None
    log_ratio_bound: PositiveFloat | None = 20.0

    @model_validator(mode="after")
    def _something_is_kept(self) -> Reject:
        if self.low is None and self.high is None:
            raise ValueError("without low and high nothing is ever rejected: give at least one")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: everything would be rejected")
        if self.high is not None and self.statistic != "k1" and self.high < 0:
            raise ValueError(
                f"{self.statistic} is never below 0, so with high={self.high} everything would be rejected"
            )
        return self

    def __call__(self, batch: TISBatch, /) -> Correction:
        verdict = self._verdict(batch)
        mask = batch.loss_mask
        rejected = self._to_tokens(batch, verdict.high | verdict.low)
        found = self._metrics(verdict) | {"tokens_rejected": metrics.fraction(rejected, mask)}
        prefix = f"reject/{self.statistic}/{self.level}"
        return Correction(batch, mask=mask & rejected.logical_not(), metrics=Metrics(found).prefixed(prefix))

    def rejected(self, batch: TISBatch) -> Tensor:
        """[tokens] bool: what lies outside the range."""
        verdict = self._verdict(batch)
        return self._to_tokens(batch, verdict.high | verdict.low)

    def _verdict(self, batch: TISBatch) -> Verdict:
        x = saturated(widened(log_ratio(batch, self)))
        if self.log_ratio_bound is not None:
            x = x.clamp(-self.log_ratio_bound, self.log_ratio_bound)
        per_token, mask = _STATISTICS[self.statistic](x), batch.loss_mask
        if self.level == "token":
            return self._judge(per_token, mask)
        found = self._judge(self._over_sequences(batch, per_token), samples_with(batch, mask))
        if self.level != "sequence-every":
            return found
        token = self._judge(per_token, mask)
        return found._replace(high=samples_with(batch, token.high), low=samples_with(batch, token.low))

    def _over_sequences(self, batch: TISBatch, per_token: Tensor) -> Tensor:
        """[batch], of a statistic that is 0 where the mask is off."""
        if self.level == "sequence-sum":
            return batch.layout.sum(per_token)
        if self.level == "sequence-mean":
            return batch.layout.mean(per_token, batch.loss_mask)
        return batch.layout.max(per_token.where(batch.loss_mask, -math.inf), -math.inf)

    def _judge(self, values: Tensor, present: Tensor) -> Verdict:
        values = saturated(values).exp() if self.statistic == "ratio" else values
        return Verdict(values, importance.above(values, self.high), importance.below(values, self.low), present)

    def _to_tokens(self, batch: TISBatch, values: Tensor) -> Tensor:
        return values if self.level == "token" else batch.layout.expand(values)

    def _metrics(self, verdict: Verdict) -> dict[str, metrics.Metric]:
        values, present = verdict.values, verdict.present
        return {
            "mean": metrics.mean(values, present),
            "min": metrics.minimum(values, present),
            "max": metrics.maximum(values, present),
            "rejected": metrics.fraction(verdict.high | verdict.low, present),
            "high": metrics.fraction(verdict.high, present),
            "low": metrics.fraction(verdict.low, present),
        }
