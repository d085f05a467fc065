"""Tapered off-policy REINFORCE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rollout_contract import metrics
from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import sequence_sum_log_ratio
from rollout_contract.kernels.sequence_policy import sequence_advantages, tapered_weights
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics, segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import RolloutPolicyBatch


class TOPR(Objective):
    """-sg(w) A log_probs with w = 1 for a response of positive return and min(pi / mu, 1) for one of negative return.

    Le Roux et al., arXiv:2503.14286. pi / mu is the product of the response's ratios
    exp(log_probs - rollout_log_probs). Good responses are learnt at full strength however unlikely they have become;
    a bad one stops being pushed down once it is unlikely, which bounds the loss. The return's sign is that of the
    sample's mean advantage, so that a baseline counts, as in the paper.

    The weight contains the correction for the sampler; further importance weights are refused.
    """

    name = "topr"
    formula = "w = 1 if mean_m(A) >= 0 else min(exp(sum_m(l - l_rollout)), 1); L = -sg(w) A l"
    paper = "arXiv:2503.14286"
    known_as: ClassVar[Mapping[str, str]] = {}
    reads: ClassVar[type[RolloutBatch]] = RolloutPolicyBatch
    correction: ClassVar[Consumption] = "refuses"

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        advantages = read(batch, "advantages", like=log_probs)
        log_ratio = log_probs.detach() - read(batch, "rollout_log_probs", like=log_probs)
        returns = sequence_advantages(advantages, *segments(batch))
        weights = tapered_weights(sequence_sum_log_ratio(log_ratio, *segments(batch)), returns)
        found = ratio_metrics(log_ratio, mask) | {"taper": metrics.mean(weights, mask & (returns < 0))}
        return Terms(score_function(log_probs, advantages, weights), Metrics(found))
