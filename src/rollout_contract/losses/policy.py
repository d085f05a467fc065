"""The policy loss: one function, one objective each."""

from __future__ import annotations

from typing import TypeVar

from rollout_contract import metrics
from rollout_contract.errors import Violation, violation_error
from rollout_contract.losses.inputs import require
from rollout_contract.losses.loss import Loss, weighted_sum
from rollout_contract.objectives.base import PolicyObjective
from rollout_contract.schema.batch import RolloutBatch

BatchT = TypeVar("BatchT", bound=RolloutBatch)


def policy_loss(batch: BatchT, objective: PolicyObjective[BatchT]) -> Loss:
    """The loss of ``objective`` on a micro-batch: the sum over tokens of weight x correction weight x term.

    Args:
        batch: bound (``log_probs``) and weighted; at least of the schema that the objective reads.
        objective: for example ``PPOClip()``; see ``rollout_contract.objectives``.

    Returns:
        The loss, to be minimised, and its metrics under the names that the objective gives them.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the objective reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
        CorrectionError: the batch carries importance weights that this objective must not be multiplied with.
    """
    require(batch, objective.reads, "policy_loss")
    if objective.correction == "refuses" and batch.has("correction_weights"):
        hint = "use an objective that takes a correction, or do not correct the batch"
        found = f"an objective ({type(objective).__name__}) that contains its own importance weight"
        wrong = Violation("correction_weights", "correction", "an objective that applies them", found, hint)
        raise violation_error("policy_loss", wrong)
    terms = objective.terms(batch)
    loss = weighted_sum(
        batch,
        terms.loss,
        terms.metrics,
        corrects=objective.correction == "multiplies",
        corrected=objective.correction == "inside",
    )
    reported = {"policy_loss": metrics.Metric("sum", loss.value.detach().reshape(1))}
    return Loss(loss.value, loss.metrics.merge(reported), loss.has_correction, loss.used_correction)
