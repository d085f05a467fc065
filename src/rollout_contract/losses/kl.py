"""The KL loss: how far the policy may drift from its reference."""

from __future__ import annotations

from rollout_contract.losses.loss import Loss
from rollout_contract.losses.term import BatchT, TokenTerm, token_loss


def kl_loss(batch: BatchT, estimator: TokenTerm[BatchT]) -> Loss:
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
    return token_loss("kl_loss", batch, estimator, "ignores")
