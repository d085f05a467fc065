"""KL in the reward: a constant taken off the token rewards, and a coefficient that adapts.

Here the KL compares the scores at the start of the step (``old_log_probs``) with the reference, and it never carries a
graph: the policy gradient of the penalised return is what trains on it. That makes the unbiased value, K1, the right
estimator (arXiv:2506.09477), and a live KL would be counted twice.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from rollout_contract import metrics
from rollout_contract.advantages.estimator import fixed
from rollout_contract.errors import Violation, violation_error
from rollout_contract.kl import K1, SampledKL
from rollout_contract.losses.inputs import read, require
from rollout_contract.metrics import Metrics
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import KLRewardBatch, ScoredKLBatch

_K1 = K1()


def kl_penalty(batch: ScoredKLBatch, estimator: SampledKL = _K1) -> FixedTensor:
    """[tokens] the KL of ``old_log_probs`` to ``ref_log_probs``, in nats, as a constant; 0 at masked-out tokens.

    Args:
        batch: before the split; ``log_probs`` need not be bound.
        estimator: K1, K2, K3, LowVarKL or AbsoluteKL.
    """
    require(batch, ScoredKLBatch, "kl_penalty")
    with torch.no_grad():
        old_log_probs = read(batch, "old_log_probs")
        return fixed(estimator.value(old_log_probs - read(batch, "ref_log_probs", like=old_log_probs)))


def penalised_rewards(batch: KLRewardBatch, coefficient: float, estimator: SampledKL = _K1) -> FixedTensor:
    """[tokens] ``token_rewards`` - coefficient x KL, as a constant; 0 at masked-out tokens (arXiv:1909.08593).

    The stored rewards are left as they are. Compute it once per step, before the advantages.
    """
    require(batch, KLRewardBatch, "penalised_rewards")
    with torch.no_grad():
        penalty = kl_penalty(batch, estimator)
        return fixed(read(batch, "token_rewards", like=penalty) - coefficient * penalty)


def kl_penalty_metrics(batch: ScoredKLBatch, estimator: SampledKL = _K1) -> Metrics:
    """``kl_in_reward``: mean over the trained tokens, in nats; what :class:`AdaptiveKLCoefficient` is updated with."""
    penalty = kl_penalty(batch, estimator)
    return Metrics({"kl_in_reward": metrics.mean(penalty, batch.loss_mask)})


class AdaptiveKLCoefficient(BaseModel):
    """A KL coefficient that steers the observed KL to a target (arXiv:1909.08593, section 2.2).

    A frozen value: ``coefficient = coefficient.updated(kl, num_samples)`` after each step; ``model_dump()`` is its
    checkpoint. verl: ``kl_ctrl.type=adaptive``; OpenRLHF: ``kl_target``; SkyRL: ``kl_ctrl.type=adaptive``.

    Attributes:
        value: the coefficient now.
        target: the KL aimed at, in nats per token (or per sequence, if that is what it is updated with).
        horizon: how many samples it takes to change the coefficient by a factor of about e at an error of 1.
        max_error: the relative error is clamped to +-this.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(ge=0.0)
    target: PositiveFloat
    horizon: PositiveFloat
    max_error: PositiveFloat = 0.2

    def updated(self, kl: float, num_samples: int) -> AdaptiveKLCoefficient:
        """The coefficient after a step with ``num_samples`` samples and an observed mean ``kl``.

        value x (1 + clip(kl / target - 1, +-max_error) x num_samples / horizon), never below 0.

        Raises:
            NonFiniteError: the observed KL is NaN or infinite; a coefficient would never recover from it.
        """
        if not math.isfinite(kl):
            wrong = Violation("kl", "value", "a finite number of nats", str(kl), "find the token that made it so")
            raise violation_error("AdaptiveKLCoefficient", wrong)
        error = min(max(kl / self.target - 1.0, -self.max_error), self.max_error)
        return self.model_copy(update={"value": max(self.value * (1.0 + error * num_samples / self.horizon), 0.0)})
