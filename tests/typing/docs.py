"""The examples of docs/typing.md, as printed there. Never executed."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from rollout_contract import (
    Fixed,
    FixedTensor,
    KLBatch,
    Metrics,
    PolicyBatch,
    TISBatch,
    TrainableTensor,
    kl_loss,
    policy_loss,
)
from rollout_contract.corrections import Correction, Truncate
from rollout_contract.kl import K2
from rollout_contract.losses.inputs import read
from rollout_contract.losses.term import Terms
from rollout_contract.objectives import DPPO, PPOClip


def ratio(log_probs: TrainableTensor, old_log_probs: FixedTensor) -> Tensor:
    return (log_probs - old_log_probs).exp()


def my_loss(batch: PolicyBatch) -> Tensor:
    good = ratio(batch.log_probs, batch.old_log_probs)
    bad = ratio(batch.log_probs, batch.log_probs)  # E: the ratio would be exactly 1
    bad += ratio(batch.log_probs, batch.log_probs.exp())  # E: nobody has cut this graph
    return (good + bad) * batch.advantages


def my_step(scores: Tensor, mask: Tensor, reference: KLBatch) -> None:
    PolicyBatch(response_lengths=[3, 2], loss_mask=mask, old_log_probs=scores)  # E: advantages are missing
    step = PolicyBatch(response_lengths=[3, 2], loss_mask=mask, old_log_probs=scores, advantages=[[0.5] * 3, [1.0] * 2])
    step.advantages = scores  # E: a batch is frozen
    step.bind(log_probs="auto")  # E: no tensor
    policy_loss(step, DPPO())  # E: rollout_log_probs are missing
    policy_loss(reference, PPOClip())  # E: another kind of batch
    kl_loss(reference, PPOClip())  # E: another kind of term
    loss = policy_loss(step, PPOClip()) + 0.1 * kl_loss(step.extend(MyStep, ref_log_probs=scores), K2())
    loss.backward()


class MyStep(PolicyBatch, KLBatch):
    """What our losses read."""


class Centered:
    """An objective that reads an extra field."""

    def terms(self, batch: Baselined, /) -> Terms:
        gain = read(batch, "advantages") - read(batch, "baselines")
        return Terms(-gain * read(batch, "log_probs"), Metrics())


class Baselined(PolicyBatch):
    """With a baseline per token."""

    baselines: Fixed[Float[Tensor, "tokens"]]


def my_correction(batch: TISBatch) -> Correction:
    return Correction(batch, weights=(batch.old_log_probs - batch.rollout_log_probs).exp().clamp(max=2.0))


def use(step: PolicyBatch, wide: Baselined, sampled: TISBatch) -> None:
    policy_loss(wide, Centered())
    policy_loss(step, Centered())  # E: baselines are missing
    sampled.corrected(Truncate() & my_correction)
    step.corrected(my_correction)  # E: rollout_log_probs are missing
    sampled.corrected(read(sampled, "old_log_probs"))  # E: a tensor may be live
