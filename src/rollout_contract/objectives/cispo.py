"""Clipped importance-sampling policy optimisation: the weight is clipped, no token loses its gradient."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import bound_metrics, ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import AdvantageBatch, PolicyBatch, RolloutPolicyBatch


class _ClippedWeight(Objective, ABC):
    ratio_min: NonNegativeFloat = 0.0
    ratio_max: PositiveFloat = 5.0
    log_ratio_bound: PositiveFloat | None = 20.0

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> _ClippedWeight:
        if self.ratio_min > self.ratio_max:
            raise ValueError(f"no weight lies between ratio_min={self.ratio_min} and ratio_max={self.ratio_max}")
        return self

    def _terms(self, batch: AdvantageBatch, anchor: str) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        log_ratio = log_probs.detach() - read(batch, anchor, like=log_probs)
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        weights = ratio.clamp(self.ratio_min, self.ratio_max)
        loss = score_function(log_probs, read(batch, "advantages", like=log_probs), weights)
        found = bound_metrics(ratio, self.ratio_min, self.ratio_max, mask)
        return Terms(loss, Metrics(found | ratio_metrics(log_ratio, mask, self.log_ratio_bound)))


class CISPO(_ClippedWeight):
    """-sg(clip(r, ratio_min, ratio_max)) A log_probs, with r = exp(log_probs - old_log_probs).

    MiniMax-M1, arXiv:2506.13585. The bounds are those of the ratio itself, since systems disagree about what an
    "epsilon" is here: verl, slime, NeMo-RL and SkyRL clip to [1 - eps_low, 1 + eps_high]; in TRL and Liger
    ``epsilon_high`` is ``ratio_max`` (5.0 is recommended) and there is no lower bound, as in the paper.

    Attributes:
        ratio_min: lower bound of the weight; 0 is none.
        ratio_max: upper bound of the weight.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`.
    """

    name = "cispo"
    formula = "r = exp(l - l_old); L = -sg(clip(r, ratio_min, ratio_max)) A l"
    paper = "arXiv:2506.13585"
    known_as: ClassVar[Mapping[str, str]] = {
        "slime": "--advantage-estimator cispo",
        "verl": "policy_loss.loss_mode=cispo",
        "TRL": "loss_type=cispo",
        "NeMo-RL": "use_cispo=true",
        "SkyRL": "policy_loss_type=cispo",
        "Liger": "loss_type=cispo",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    def terms(self, batch: PolicyBatch, /) -> Terms:
        return self._terms(batch, "old_log_probs")


class RolloutCISPO(_ClippedWeight):
    """CISPO with the ratio taken against the policy that made the rollouts: r = exp(log_probs - rollout_log_probs).

    It corrects for staleness and for the mismatch of engines at once, and therefore refuses further importance weights.
    Attributes: those of :class:`CISPO`.
    """

    name = "cispo_rollout"
    formula = "r = exp(l - l_rollout); L = -sg(clip(r, ratio_min, ratio_max)) A l"
    paper = "arXiv:2506.13585"
    known_as: ClassVar[Mapping[str, str]] = {
        "SkyRL": "policy_loss_type=cispo, cispo.cispo_anchor=rollout",
        "Tinker": "loss_fn=cispo",
    }
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        return self._terms(batch, "rollout_log_probs")
