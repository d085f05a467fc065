"""A*-PO: regression of the policy's log-ratio on the optimal advantage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveFloat

from rollout_contract import metrics
from rollout_contract.kernels.ratio import sequence_sum_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import OptimalAdvantageBatch


class OptimalAdvantage(Objective):
    """(beta sum_m(log_probs - ref_log_probs) - (R - V*))^2 per sample (A*-PO, arXiv:2505.20686).

    V* is the prompt's optimal value, estimated beforehand from samples of the reference policy
    (``rollout_contract.kernels.optimal_value``). One response per prompt is enough. Use "seq-mean-token-mean": the loss
    is then the mean over samples. Importance weights are refused: it is a regression, not an expectation.

    Attributes:
        beta: strength of the KL penalty that defines the optimum, in reward per nat.
    """

    name = "optimal_advantage"
    formula = "L = (beta sum_m(l - l_ref) - (R - V*))^2"
    paper = "arXiv:2505.20686"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "(experimental.a2po)"}
    reads: ClassVar[type[RolloutBatch]] = OptimalAdvantageBatch
    correction: ClassVar[Consumption] = "refuses"

    beta: PositiveFloat = 1e-3

    def terms(self, batch: OptimalAdvantageBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "ref_log_probs", like=log_probs)
        advantage = read(batch, "rewards", like=log_probs) - read(batch, "optimal_values", like=log_probs)
        total = sequence_sum_log_ratio(log_ratio, *segments(batch))
        error = self.beta * total - batch.layout.expand(advantage)
        found = {"kl_to_reference": metrics.mean(log_ratio, batch.loss_mask)}
        return Terms(error.square(), Metrics(found))
