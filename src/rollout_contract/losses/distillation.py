"""The distillation loss: how far the student's distribution is from the teacher's."""

from __future__ import annotations

from typing import Protocol, TypeVar

from rollout_contract import metrics
from rollout_contract.losses.inputs import require
from rollout_contract.losses.loss import Loss, weighted_sum
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Terms
from rollout_contract.schema.batch import RolloutBatch

BatchT = TypeVar("BatchT", bound=RolloutBatch)
BatchT_contra = TypeVar("BatchT_contra", bound=RolloutBatch, contravariant=True)


class DistillationTerm(Protocol[BatchT_contra]):
    """What ``distillation_loss`` takes: a term of ``rollout_contract.distillation``, or one of your own."""

    @property
    def reads(self) -> type[RolloutBatch]: ...

    def terms(self, batch: BatchT_contra, /) -> Terms: ...


def distillation_loss(batch: BatchT, term: DistillationTerm[BatchT]) -> Loss:
    """The weighted sum of a divergence per token between the student's distribution, live, and the teacher's, fixed.

    The divergence of a token does not depend on which token was sampled there, so a correction's importance weights are
    not applied; its mask is. Losses on the sampled token alone are objectives of ``policy_loss``
    (``rollout_contract.distillation.sampled``).

    Args:
        batch: bound and weighted; at least of the schema that the term reads.
        term: ``FullVocabulary()``, ``TopKDivergence(...)``, ``FlooredTopKDivergence(...)`` or ``TopKReverseKL(...)``.

    Returns:
        The loss, with the metric ``distillation_loss`` and those of the term.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the term reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
    """
    require(batch, term.reads, "distillation_loss")
    terms = term.terms(batch)
    loss = weighted_sum(batch, terms.loss, terms.metrics)
    reported = Metrics({"distillation_loss": metrics.Metric("sum", loss.value.detach().reshape(1))})
    return Loss(loss.value, loss.metrics.merge(reported), loss.has_correction, loss.used_correction)
