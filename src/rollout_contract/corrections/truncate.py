"""Truncated importance sampling (TIS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from rollout_contract.corrections.correction import Correction
from rollout_contract.corrections.reject import Reject
from rollout_contract.corrections.rule import CorrectionRule, Level, at_level, log_ratio, to_tokens
from rollout_contract.kernels import importance
from rollout_contract.kernels.precision import widened
from rollout_contract.kernels.ratio import bounded
from rollout_contract.metrics import Metrics
from rollout_contract.mismatch import ratio_metrics
from rollout_contract.schemas import TISBatch


class Truncate(CorrectionRule):
    """Weights w = clamp(e^x, low, high) with x = old_log_probs - rollout_log_probs, constants to the loss.

    Source: fengyao.notion.site/off-policy-rl; truncation: Munos et al., arXiv:1606.02647. ``high=None`` with
    ``low=None`` gives the untruncated importance weights.

    Attributes:
        high: upper bound of a weight.
        low: lower bound of a weight; none by default, since small weights add little variance.
        level: ``token``: x of the token; ``sequence``: the sum of x over the sample's trained tokens, one weight for
            all of them; ``geometric``: its mean, so that the weight does not shrink or explode with length.
        log_ratio_bound: the log-ratio is bounded to +-this, in nats, before exp; None: to what the dtype can hold.
        only: clamp only what this rejection rule would drop, and leave the other weights as they are.

    Metrics, under ``truncate/``: of the ratio before any bound, over tokens or (sequence levels) over sequences; see
    :func:`rollout_contract.mismatch.ratio_metrics`.
    """

    name = "truncate"
    formula = "w = clamp(exp(l_old - l_rollout), low, high); per sequence the sum, or the mean, of the log-ratios"
    paper = "https://fengyao.notion.site/off-policy-rl"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--use-tis, --tis-clip, --tis-clip-low",
        "slime": "--use-tis, --tis-clip, --tis-clip-low",
        "verl": "rollout_is=token | sequence, rollout_is_threshold",
        "TRL": "vllm_importance_sampling_mode=token_truncate | sequence_truncate, use_vllm=true",
        "OpenRLHF": "--enable_vllm_is_correction, --vllm_is_correction_type tis",
        "NeMo-RL": "truncated_importance_sampling_type=tis, truncated_importance_sampling_ratio",
        "AReaL": "use_decoupled_loss=true",
        "SkyRL": "tis_ratio_type=token | sequence",
        "Liger": "(vllm_is_ratio)",
    }

    high: PositiveFloat | None = 2.0
    low: NonNegativeFloat | None = None
    level: Level = "token"
    log_ratio_bound: PositiveFloat | None = 20.0
    only: Reject | None = None

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Truncate:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: no weight lies between them")
        return self

    def __call__(self, batch: TISBatch, /) -> Correction:
        found, present = at_level(batch, log_ratio(batch, self), self.level)
        ratio = bounded(found, self.log_ratio_bound).exp()
        weights = to_tokens(batch, importance.truncated(ratio, self.low, self.high), self.level)
        if self.only is not None:
            weights = weights.where(self.only.rejected(batch), to_tokens(batch, ratio, self.level))
        metrics = Metrics(ratio_metrics(widened(found), present, self.low, self.high))
        return Correction(batch, weights=weights, metrics=metrics.prefixed("truncate"))
