"""The schema of a dict in which any score may be absent."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from rollout_contract.roles import AnyDevice, Fixed, unbound
from rollout_contract.schemas import KLBatch, OPDBatch, PolicyBatch, ReverseKLBatch, TISBatch, ValueBatch


class PersistedBatch(PolicyBatch, TISBatch, KLBatch, OPDBatch, ReverseKLBatch, ValueBatch):
    """Every per-token score that trainers keep between scoring and loss, each of them optional.

    Its batches go into every loss; a loss that reads an absent field raises ``MissingFieldError``. A schema that
    inherits from those of the losses instead finds the absent field here, at the boundary.
    """

    old_log_probs: Fixed[Float[Tensor, "tokens"]] = unbound()
    rollout_log_probs: Fixed[Float[Tensor, "tokens"]] = unbound()
    ref_log_probs: Fixed[Float[Tensor, "tokens"]] = unbound()
    teacher_log_probs: Fixed[Annotated[Float[Tensor, "tokens"], AnyDevice]] = unbound()
    reverse_kl: Fixed[Float[Tensor, "tokens"]] = unbound()
    advantages: Fixed[Float[Tensor, "tokens"]] = unbound()
    values: Fixed[Float[Tensor, "tokens"]] = unbound()
    returns: Fixed[Float[Tensor, "tokens"]] = unbound()
