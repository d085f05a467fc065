"""Direct reward optimisation: the policy gradient with a quadratic pull towards the old policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveFloat

from rollout_contract.kernels.policy import quadratic_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class DRO(Objective):
    """-(A log_probs - beta / 2 (log_probs - old_log_probs)^2) (Richemond et al., arXiv:2405.19107).

    The gradient of token t is -(A - beta (log_probs - old_log_probs)). There is no ratio and nothing to clip; the pull
    is what keeps the policy near. Tinker measures it from the sampler: give its log-probs as ``old_log_probs``.

    Attributes:
        beta: strength of the pull, above 0; verl's ``dro_beta``.
    """

    name = "dro"
    formula = "L = -(A l - beta / 2 (l - l_old)^2)"
    paper = "arXiv:2405.19107"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "policy_loss.loss_mode=dro, dro_beta", "Tinker": "loss_fn=dro"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    beta: PositiveFloat = 0.05

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        loss = quadratic_log_ratio(log_probs, read(batch, "advantages", like=log_probs), log_ratio, self.beta)
        return Terms(loss, Metrics(ratio_metrics(log_ratio, batch.loss_mask)))
