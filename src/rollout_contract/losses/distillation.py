"""The distillation loss: how far the student's distribution is from the teacher's."""

from __future__ import annotations

from rollout_contract.losses.loss import Loss
from rollout_contract.losses.term import BatchT, TokenTerm, token_loss


def distillation_loss(batch: BatchT, term: TokenTerm[BatchT]) -> Loss:
    """The weighted sum of a divergence per token between the student's distribution, live, and the teacher's, fixed.

    The divergence of a token does not depend on which token was sampled there, so a correction's importance weights are
    not applied; its mask is. Losses on the sampled token alone are objectives of ``policy_loss``
    (``rollout_contract.objectives.reverse_kl``).

    Args:
        batch: bound and weighted; at least of the schema that the term reads.
        term: ``FullVocabulary()``, ``TopKDivergence(...)``, ``FlooredTopKDivergence(...)`` or ``TopKReverseKL(...)``.

    Returns:
        The loss, with the metric ``distillation_loss`` and those of the term.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the term reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
    """
    return token_loss("distillation_loss", batch, term, "ignores")
