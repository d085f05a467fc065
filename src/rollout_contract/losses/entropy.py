"""The entropy term: live as a bonus, detached as a metric."""

from __future__ import annotations

from rollout_contract import metrics
from rollout_contract.losses.inputs import read, require
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.term import Terms, token_loss
from rollout_contract.metrics import Metrics
from rollout_contract.schemas import EntropyBatch, ObservedEntropyBatch


class _Entropy:
    """The entropy itself, as a term."""

    def terms(self, batch: EntropyBatch, /) -> Terms:
        entropy = read(batch, "entropy")
        return Terms(entropy, Metrics({"entropy": metrics.mean(entropy, batch.loss_mask)}))


def entropy_bonus(batch: EntropyBatch) -> Loss:
    """The weighted sum of the entropy at each token, live: ``policy_loss(...) - 0.001 * entropy_bonus(batch)``.

    With mode ``token-mean`` it is the mean entropy. A correction's importance weights are not applied.

    Args:
        batch: weighted, and bound with ``entropy`` [tokens] in nats, as ``score_logits`` returns it.

    Returns:
        The bonus, with the metrics ``entropy`` (mean over the trained tokens, in nats) and ``entropy_bonus``.

    Raises:
        MissingFieldError: the batch is not weighted, or ``entropy`` is not bound.
    """
    return token_loss("entropy_bonus", batch, _Entropy(), "ignores")


def entropy_metrics(batch: ObservedEntropyBatch) -> Metrics:
    """Entropy that is only watched: ``entropy``, ``entropy_min`` and ``entropy_max`` over the trained tokens, in nats.

    The field ``observed_entropy`` is fixed, so nothing is trained through it and no graph is kept.
    """
    require(batch, ObservedEntropyBatch, "entropy_metrics")
    entropy, mask = read(batch, "observed_entropy"), batch.loss_mask
    return Metrics(
        {
            "entropy": metrics.mean(entropy, mask),
            "entropy_min": metrics.minimum(entropy, mask),
            "entropy_max": metrics.maximum(entropy, mask),
        }
    )
