"""The policy loss: one function, one objective each."""

from __future__ import annotations

from rollout_contract.losses.loss import Loss
from rollout_contract.losses.term import BatchT, TokenTerm, token_loss


def policy_loss(batch: BatchT, objective: TokenTerm[BatchT]) -> Loss:
    """The loss of ``objective`` on a micro-batch: the sum over tokens of weight x correction weight x term.

    Args:
        batch: bound (``log_probs``) and weighted; at least of the schema that the objective reads.
        objective: for example ``PPOClip()``; see ``rollout_contract.objectives``. One of your own multiplies by the
            correction weights unless its attribute ``correction`` says otherwise.

    Returns:
        The loss, to be minimised, and its metrics under the names that the objective gives them.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the objective reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
        CorrectionError: the batch carries importance weights that this objective must not be multiplied with.
    """
    return token_loss("policy_loss", batch, objective, getattr(objective, "correction", "multiplies"))
