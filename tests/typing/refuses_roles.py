"""Fixed where trainable belongs, and the other way round. Each line marked E must be refused. Never executed."""

from __future__ import annotations

from jaxtyping import Float
from tests.typing.values import divergence, everything, scores, step, topk
from torch import Tensor

from rollout_contract import (
    Fixed,
    FixedTensor,
    KLBatch,
    OPDBatch,
    PolicyBatch,
    RewardBatch,
    TISBatch,
    Trainable,
    TrainableTensor,
    ValueBatch,
    unbound,
)
from rollout_contract.schemas import (
    DivergenceBatch,
    EntropyBatch,
    GAEBatch,
    ObservedEntropyBatch,
    TokenRewardBatch,
    TopKBatch,
)


def ratio(log_probs: TrainableTensor, old_log_probs: FixedTensor) -> Tensor:
    return (log_probs - old_log_probs).exp()


def calls() -> None:
    ratio(step.log_probs, step.old_log_probs)
    ratio(step.old_log_probs, step.old_log_probs)  # E: the gradient would be lost
    ratio(step.log_probs, step.log_probs)  # E: the ratio would be exactly 1
    ratio(step.old_log_probs, step.log_probs)  # E: swapped
    ratio(step.log_probs, scores)  # E: nobody has cut this one
    ratio(scores, step.old_log_probs)  # E: nobody knows whether this one is live
    ratio(step.log_probs, step.log_probs.exp())  # E: arithmetic gives a plain tensor
    ratio(step.log_probs, step.old_log_probs * 2)  # E: the same
    ratio(step.log_probs, [-1.0, -2.0])  # E: a batch takes rows, a function takes tensors
    ratio(step.log_probs, None)  # E
    ratio(step.log_probs)  # E


def reads() -> None:
    """The role of every field that a loss reads."""
    live: TrainableTensor = everything.old_log_probs  # E
    live = everything.advantages  # E
    live = everything.rollout_log_probs  # E
    live = everything.ref_log_probs  # E
    live = everything.teacher_log_probs  # E
    live = everything.values  # E
    live = everything.returns  # E
    live = everything.rewards  # E
    live = everything.loss_weights  # E
    live = everything.correction_weights  # E
    live = everything.loss_mask  # E
    live = topk.teacher_topk_log_probs  # E
    live = topk.topk_mask  # E
    dead: FixedTensor = everything.log_probs  # E
    dead = everything.entropy  # E
    dead = everything.value_predictions  # E
    dead = topk.topk_log_probs  # E
    dead = divergence.divergence  # E
    print(live, dead)


class LivePolicy(PolicyBatch):
    """A subclass that would make the fixed inputs of the policy loss live."""

    old_log_probs: Trainable[Float[Tensor, "tokens"]]  # E
    advantages: Trainable[Float[Tensor, "tokens"]]  # E


class DeadPolicy(PolicyBatch):
    log_probs: Fixed[Float[Tensor, "tokens"]] = unbound()  # E


class LiveSampler(TISBatch):
    rollout_log_probs: Trainable[Float[Tensor, "tokens"]]  # E


class LiveReference(KLBatch):
    ref_log_probs: Trainable[Float[Tensor, "tokens"]]  # E


class LiveTeacher(OPDBatch):
    teacher_log_probs: Trainable[Float[Tensor, "tokens"]]  # E


class LiveTopK(TopKBatch):
    teacher_topk_log_probs: Trainable[Float[Tensor, "tokens topk"]]  # E


class DeadTopK(TopKBatch):
    topk_log_probs: Fixed[Float[Tensor, "tokens topk"]] = unbound()  # E


class DeadDivergence(DivergenceBatch):
    divergence: Fixed[Float[Tensor, "tokens"]] = unbound()  # E


class LiveValues(ValueBatch):
    values: Trainable[Float[Tensor, "tokens"]]  # E
    returns: Trainable[Float[Tensor, "tokens"]]  # E


class DeadCritic(ValueBatch):
    value_predictions: Fixed[Float[Tensor, "tokens"]] = unbound()  # E


class DeadEntropy(EntropyBatch):
    entropy: Fixed[Float[Tensor, "tokens"]] = unbound()  # E


class LiveObservation(ObservedEntropyBatch):
    observed_entropy: Trainable[Float[Tensor, "tokens"]] = unbound()  # E


class LiveRewards(RewardBatch):
    rewards: Trainable[Float[Tensor, "batch"]]  # E


class LiveTokenRewards(TokenRewardBatch):
    token_rewards: Trainable[Float[Tensor, "tokens"]]  # E


class LiveBaseline(GAEBatch):
    values: Trainable[Float[Tensor, "tokens"]]  # E


class LiveMask(PolicyBatch):
    loss_mask: Trainable[Float[Tensor, "tokens"]]  # E


class Untagged(PolicyBatch):
    old_log_probs: Tensor  # E


class Conflict(DeadPolicy, ValueBatch):
    """Two schemas that agree combine."""


class Disagreement(LiveBaseline, ValueBatch):  # E: values are live in one and fixed in the other
    pass
