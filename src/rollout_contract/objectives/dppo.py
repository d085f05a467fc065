"""Policy gradients with a trust region on probabilities instead of ratios."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded
from rollout_contract.kernels.trust_region import binary_kl, leaves_region, probability_shift
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import AdvantageBatch, PolicyBatch, RolloutPolicyBatch


class _MaskedGradient(Objective, ABC):
    """-r A where a token is kept, plus drift (log-ratio)^2 at every token."""

    drift: NonNegativeFloat = 0.0
    truncation: PositiveFloat | None = None
    log_ratio_bound: PositiveFloat | None = 20.0

    def _terms(self, batch: AdvantageBatch, anchor: str) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        anchor_log_probs, advantages = read(batch, anchor, like=log_probs), read(batch, "advantages", like=log_probs)
        low, high = self._dropped(log_probs, anchor_log_probs, advantages)
        log_ratio = log_probs - anchor_log_probs
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        if self.truncation is None:
            loss = -ratio * advantages
        else:
            loss = score_function(log_probs, advantages, ratio.clamp(max=self.truncation))
        loss = loss.where(~(low | high), 0.0)
        if self.drift:
            loss = loss + self.drift * log_ratio.square()
        found = {
            "dropped_fraction": metrics.fraction(low | high, mask),
            "dropped_fraction_low": metrics.fraction(low, mask),
            "dropped_fraction_high": metrics.fraction(high, mask),
        }
        return Terms(loss, Metrics(found | ratio_metrics(log_ratio, mask, self.log_ratio_bound)))

    @abstractmethod
    def _dropped(self, log_probs: Tensor, anchor: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """(less likely, likelier): the tokens without a policy gradient."""


class _TrustRegion(_MaskedGradient, ABC):
    divergence: Literal["tv", "kl"] = "tv"
    delta_low: NonNegativeFloat = Field(default=0.2)
    delta_high: NonNegativeFloat = Field(default=0.2)

    def _dropped(self, log_probs: Tensor, anchor: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        shift = probability_shift(log_probs, anchor)
        divergence = shift.abs() if self.divergence == "tv" else binary_kl(log_probs, anchor)
        return leaves_region(shift, divergence, advantages, self.delta_low, self.delta_high)


class DPPO(_TrustRegion):
    """-r A, and no gradient for a token that left the trust region on the side to which A pushes it (arXiv:2602.04879).

    r = exp(log_probs - rollout_log_probs). The divergence is that of "this token or another" between the two policies:
    total variation |pi - mu|, or KL(mu || pi). The region is anchored at the policy that sampled, as the paper asks;
    verl anchors at the old policy (:class:`ProximalDPPO`). At A = 0 the policy gradient is zero anyway, so prime-rl's
    rule for it (as for A < 0) differs from SkyRL's (keep) only in what is counted as dropped; here it is kept.

    Attributes:
        divergence: ``tv`` or ``kl``.
        delta_low, delta_high: the radius for A < 0 and for A > 0; a probability for ``tv``, nats for ``kl``.
        drift: weight of (log_probs - rollout_log_probs)^2 at every trained token, dropped ones as well (Kimi K2.5,
            arXiv:2602.02276, without the factor 1/2). prime-rl's ``kl_tau``, 1e-3 there; 0 in the other systems.
        truncation: bound the weight: -sg(min(r, truncation)) A log_probs, which has the same gradient below the bound.
            verl has 20. None: the ratio itself is differentiated.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`. prime-rl has none.
    """

    name = "dppo"
    formula = (
        "r = exp(l - l_rollout); L = -keep r A + drift (l - l_rollout)^2; drop if D > delta_high and A > 0 and p > q"
    )
    paper = "arXiv:2602.04879"
    known_as: ClassVar[Mapping[str, str]] = {"prime-rl": "loss.type=default", "SkyRL": "policy_loss_type=dppo"}
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        return self._terms(batch, "rollout_log_probs")


class ProximalDPPO(_TrustRegion):
    """DPPO anchored at the old policy, whose mismatch with the sampler is left to a correction.

    Attributes: those of :class:`DPPO`.
    """

    name = "dppo_proximal"
    formula = "r = exp(l - l_old); L = -keep r A; drop if D > delta_high and A > 0 and p > p_old"
    paper = "arXiv:2602.04879"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "policy_loss.loss_mode=dppo_tv | dppo_kl"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    def terms(self, batch: PolicyBatch, /) -> Terms:
        return self._terms(batch, "old_log_probs")


class ProbabilityMask(_MaskedGradient):
    """-r A, and no gradient for a token whose probability moved by more than ``delta``, on whichever side.

    prime-rl calls it "ipo"; it has nothing to do with the preference loss of that name.

    Attributes:
        delta: the largest |pi - mu| that keeps its gradient.
        drift, truncation, log_ratio_bound: those of :class:`DPPO`.
    """

    name = "probability_mask"
    formula = "r = exp(l - l_rollout); L = -1[|p - q| <= delta] r A + drift (l - l_rollout)^2"
    paper = "https://github.com/PrimeIntellect-ai/prime-rl"
    known_as: ClassVar[Mapping[str, str]] = {"prime-rl": "loss.type=ipo"}
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    delta: NonNegativeFloat = 0.1

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        return self._terms(batch, "rollout_log_probs")

    def _dropped(self, log_probs: Tensor, anchor: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        shift = probability_shift(log_probs, anchor)
        return shift < -self.delta, shift > self.delta
