"""Clip-Cov and KL-Cov: tokens whose advantage and log-prob vary together drive entropy down, so hold them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.covariance import fraction_count, largest, token_covariance
from rollout_contract.kernels.policy import clip_hits
from rollout_contract.kernels.ratio import bounded
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.objectives.observe import ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class ClipCov(ClippedObjective):
    """PPO clip, and no loss for a few random tokens whose covariance (A - mean A)(l - mean l) lies in a band.

    arXiv:2505.22617. Means are over the trained tokens of the micro-batch, so a split changes the objective. Candidates
    are tokens that the clip did not stop. The draw uses torch's global generator.

    Attributes:
        fraction: how many tokens lose their loss, of the trained tokens; at least one, if there is a candidate.
        covariance_low, covariance_high: the band, exclusive. verl's defaults are 1 and 5.
        clip_low, clip_high, dual_clip, ratio_cap, log_ratio_bound: see
            :class:`~rollout_contract.objectives.clipped.ClippedObjective`. verl and SkyRL have no bound here.
    """

    name = "clip_cov"
    formula = (
        "c = (A - mean A)(l - mean l); L = 0 for a few random unclipped tokens with c_low < c < c_high, else PPO clip"
    )
    paper = "arXiv:2505.22617"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "policy_loss.loss_mode=clip_cov",
        "SkyRL": "policy_loss_type=clip_cov",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch
    batch_statistics = True

    fraction: float = Field(default=2e-4, gt=0.0, le=1.0)
    covariance_low: float = 1.0
    covariance_high: float = 5.0

    @model_validator(mode="after")
    def _band_is_not_empty(self) -> ClipCov:
        if self.covariance_low >= self.covariance_high:
            raise ValueError(f"no covariance lies between {self.covariance_low} and {self.covariance_high}")
        return self

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        advantages = read(batch, "advantages", like=log_probs)
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        loss, found = self.clipped_terms(log_ratio, advantages, mask)
        dropped = self.draw(
            self.candidates(log_probs, log_ratio, advantages, mask), fraction_count(mask, self.fraction)
        )
        return Terms(loss.where(~dropped, 0.0), found.merge({"dropped_fraction": metrics.fraction(dropped, mask)}))

    def candidates(self, log_probs: Tensor, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """[tokens] bool: trained, not clipped, and in the band."""
        covariance = token_covariance(log_probs, advantages, mask)
        ratio = bounded(log_ratio.detach(), self.log_ratio_bound).exp()
        hits = clip_hits(ratio, advantages, self.clip_low, self.clip_high)
        in_band = (covariance > self.covariance_low) & (covariance < self.covariance_high)
        return mask & in_band & ~(hits.low | hits.high)

    def draw(self, candidates: Tensor, count: Tensor) -> Tensor:
        """[tokens] bool: ``count`` of the candidates, at random."""
        return largest(torch.rand(candidates.shape, device=candidates.device), candidates, count)


class KLCov(Objective):
    """-r A without a clip, plus coef |log r| at the tokens with the largest covariance (A - mean A)(l - mean l).

    arXiv:2505.22617. Means are over the trained tokens of the micro-batch, so a split changes the objective.

    Attributes:
        fraction: how many tokens get the penalty, of the trained tokens; at least one.
        coef: weight of the penalty, 1 in the paper.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`. verl and SkyRL have none.
    """

    name = "kl_cov"
    formula = "c = (A - mean A)(l - mean l); L = -r A + coef |l - l_old| for the largest c"
    paper = "arXiv:2505.22617"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "policy_loss.loss_mode=kl_cov", "SkyRL": "policy_loss_type=kl_cov"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch
    batch_statistics = True

    fraction: float = Field(default=2e-4, gt=0.0, le=1.0)
    coef: NonNegativeFloat = 1.0
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        advantages = read(batch, "advantages", like=log_probs)
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        covariance = token_covariance(log_probs, advantages, mask)
        penalised = largest(covariance, mask, fraction_count(mask, self.fraction))
        loss = -bounded(log_ratio, self.log_ratio_bound).exp() * advantages
        loss = loss + self.coef * log_ratio.abs().where(penalised, 0.0)
        found = ratio_metrics(log_ratio, mask, self.log_ratio_bound)
        found["abs_kl"] = metrics.mean(log_ratio.abs(), mask)
        found["penalised_fraction"] = metrics.fraction(penalised, mask)
        return Terms(loss, Metrics(found))
