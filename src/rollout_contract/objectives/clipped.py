"""The clipped surrogate that PPO and its sequence-level descendants share."""

from __future__ import annotations

from abc import ABC

from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from rollout_contract.kernels.clipped_loss import clipped_loss
from rollout_contract.kernels.policy import clip_hits
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import clip_metrics, ratio_metrics


class ClippedObjective(Objective, ABC):
    """L = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), whatever the ratio r is.

    Attributes:
        clip_low: how far the ratio of a token with A < 0 may fall below 1 before its gradient stops.
        clip_high: how far the ratio of a token with A > 0 may rise above 1. A larger one than ``clip_low`` is DAPO's
            clip-higher (arXiv:2503.14476).
        dual_clip: c > 1; for A < 0 the loss is at most c |A|, with no gradient beyond (arXiv:1912.09729). verl has
            always c = 3; in the other trainers it is off unless asked for. Off by default: it stops the gradient
            exactly where a bad token became much likelier.
        ratio_cap: delta > 1; the ratio is min(r, delta) in the unclipped branch (INTELLECT-2, arXiv:2505.07291; TRL's
            and Liger's ``delta``). It matters for A < 0, where delta should exceed 1 + clip_high.
        log_ratio_bound: the log-ratio is bounded to +-this, in nats, before exp; tokens beyond have no gradient. miles,
            verl, OpenRLHF and SkyRL use 20; slime, TRL, NeMo-RL, AReaL and Liger have none. None: only the range of
            the dtype bounds it.
    """

    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.2
    dual_clip: float | None = Field(default=None, gt=1.0)
    ratio_cap: float | None = Field(default=None, gt=1.0)
    log_ratio_bound: PositiveFloat | None = 20.0

    def clipped_terms(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Terms:
        """The clipped surrogate of the exponential of ``log_ratio``, and its metrics."""
        clip = (self.clip_low, self.clip_high, self.dual_clip, self.ratio_cap)
        loss, ratio = clipped_loss(log_ratio, advantages, *clip, self.log_ratio_bound)
        hits = clip_hits(ratio, advantages, *clip)
        found = clip_metrics(hits, mask) | ratio_metrics(log_ratio, mask, self.log_ratio_bound)
        return Terms(loss, Metrics(found))
