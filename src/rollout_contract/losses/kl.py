"""The KL loss: how far the policy may drift from its reference."""

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


class KLTerm(Protocol[BatchT_contra]):
    """What ``kl_loss`` takes: an estimator of ``rollout_contract.kl``, or an object of your own with these members."""

    @property
    def reads(self) -> type[RolloutBatch]: ...

    def terms(self, batch: BatchT_contra, /) -> Terms: ...


def kl_loss(batch: BatchT, estimator: KLTerm[BatchT]) -> Loss:
    """The weighted sum of a KL term per token, to be multiplied by a coefficient and added to the policy loss.

    A correction's importance weights are not applied: they belong to the policy gradient of the sampled token. Its mask
    is (a rejected token has weight 0). A step without a KL term needs no reference: do not call this, and leave
    ``ref_log_probs`` out.

    Args:
        batch: bound (``log_probs``) and weighted; at least of the schema that the estimator reads.
        estimator: for example ``K2()`` or ``UnbiasedKL()``; see ``rollout_contract.kl`` for which gradient each has.

    Returns:
        The loss, live in ``log_probs``, with the metrics ``kl_loss``, ``kl``, ``kl_k1`` and ``kl_clamped``.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the estimator reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.

    Warns:
        UserWarning: K1 as a loss, whose gradient has expectation zero.
    """
    require(batch, estimator.reads, "kl_loss")
    terms = estimator.terms(batch)
    loss = weighted_sum(batch, terms.loss, terms.metrics)
    reported = Metrics({"kl_loss": metrics.Metric("sum", loss.value.detach().reshape(1))})
    return Loss(loss.value, loss.metrics.merge(reported), loss.has_correction, loss.used_correction)
