"""The plain policy gradient, without and with an importance weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded, sequence_sum_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import bound_metrics, ratio_metrics, segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import AdvantageBatch, RolloutPolicyBatch


class Reinforce(Objective):
    """-A log_probs (Williams 1992): the gradient of token t is -A_t.

    It reads no old policy. Importance weights of the batch multiply it.
    """

    name = "reinforce"
    formula = "L = -A l"
    paper = "https://doi.org/10.1007/BF00992696"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "rollout_correction.bypass_mode=true, loss_type=reinforce",
        "NeMo-RL": "disable_ppo_ratio=true",
    }
    reads: ClassVar[type[RolloutBatch]] = AdvantageBatch

    def terms(self, batch: AdvantageBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        return Terms(-read(batch, "advantages", like=log_probs) * log_probs, Metrics())


class GPG(Reinforce):
    """Group policy gradient (arXiv:2504.02546): REINFORCE's loss; its own part is the advantage estimator."""

    name = "gpg"
    paper = "arXiv:2504.02546"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "policy_loss.loss_mode=gpg"}


class RolloutReinforce(Objective):
    """-sg(w) A log_probs with w = clamp(exp(log_probs - rollout_log_probs), low, high): bypass mode.

    There is no old policy: the weight compares the current policy with the one that made the rollouts, and it is fixed.
    A live weight would turn the gradient -w A into -w A (1 + log_probs), which vanishes at log_probs = -1 and has the
    wrong sign below. Further importance weights are refused.

    Attributes:
        weight_max: upper bound of the weight; verl's ``rollout_is_threshold``, 10 in torchforge. None: unbounded.
        weight_min: lower bound of the weight; 0.1 in torchforge. 0: none.
        level: ``token``, or ``sequence``: the product of the sample's ratios.
        log_ratio_bound: see :class:`~rollout_contract.objectives.clipped.ClippedObjective`.
    """

    name = "reinforce_rollout"
    formula = "w = clamp(exp(l - l_rollout), low, high); L = -sg(w) A l"
    paper = "https://fengyao.notion.site/off-policy-rl"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "rollout_correction.bypass_mode=true, loss_type=reinforce, rollout_is=token | sequence",
        "torchforge": "ReinforceLoss",
    }
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    weight_max: PositiveFloat | None = 2.0
    weight_min: NonNegativeFloat = 0.0
    level: Literal["token", "sequence"] = "token"
    log_ratio_bound: PositiveFloat | None = 20.0

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> RolloutReinforce:
        if self.weight_max is not None and self.weight_min > self.weight_max:
            raise ValueError(f"weight_min={self.weight_min} is above weight_max={self.weight_max}")
        return self

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        log_ratio = log_probs.detach() - read(batch, "rollout_log_probs", like=log_probs)
        if self.level == "sequence":
            log_ratio = sequence_sum_log_ratio(log_ratio, *segments(batch))
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        weights = ratio.clamp(self.weight_min, self.weight_max)
        loss = score_function(log_probs, read(batch, "advantages", like=log_probs), weights)
        top = float("inf") if self.weight_max is None else self.weight_max
        found = bound_metrics(ratio, self.weight_min, top, mask)
        return Terms(loss, Metrics(found | ratio_metrics(log_ratio, mask, self.log_ratio_bound)))
