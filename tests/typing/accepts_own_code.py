"""Schemas, terms, objectives, corrections and losses of a user, as a checker must accept them. Never executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar, assert_type

from jaxtyping import Bool, Float, Int
from tests.typing.values import Everything, everything, live, policy, scores, step, tis
from torch import Tensor

from rollout_contract import (
    AnyDevice,
    Fixed,
    FixedTensor,
    KLBatch,
    Loss,
    Metadata,
    PerSample,
    PolicyBatch,
    RolloutBatch,
    TISBatch,
    Trainable,
    TrainableTensor,
    Upcast,
    kl_loss,
    policy_loss,
    unbound,
)
from rollout_contract.corrections import Combined, Correction, Normalize, Truncate
from rollout_contract.kl import K2, KLEstimator, SampledKL
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.losses.term import Terms, TokenTerm
from rollout_contract.metrics import Metrics, mean
from rollout_contract.objectives import DPPO, OPSM, Objective, PPOClip
from rollout_contract.schemas import AdvantageBatch, OffPolicyMaskBatch


class ToolStep(PolicyBatch):
    """Fields of every kind."""

    tool_mask: Fixed[Bool[Tensor, "tokens"]]
    token_ids: Fixed[Int[Tensor, "tokens"]]
    judge_log_probs: Fixed[Annotated[Float[Tensor, "tokens"], AnyDevice, Upcast]]
    auxiliary: Trainable[Float[Tensor, "tokens heads"]] = unbound()
    task: PerSample[str]
    engine: Metadata[Mapping[str, int]]
    policy_version: Metadata[int] = unbound()


class WideStep(ToolStep, TISBatch, KLBatch):
    """Schemas of our own combine with those of the library."""


def build(numbers: list[list[float]]) -> WideStep:
    return WideStep(
        response_lengths=[3, 2],
        loss_mask=[[1, 1, 0], [1, 1]],
        old_log_probs=numbers,
        rollout_log_probs=(scores, scores),
        ref_log_probs=scores,
        advantages=scores,
        tool_mask=[[True, False, False], [False, False]],
        token_ids=[[1, 2, 3], [4, 5]],
        judge_log_probs=scores,
        task=["sort", "sum"],
        engine={"version": 3},
    )


def fields(batch: WideStep) -> None:
    assert_type(batch.tool_mask, FixedTensor)
    assert_type(batch.auxiliary, TrainableTensor)
    assert_type(batch.task, tuple[str, ...])
    assert_type(batch.engine, Mapping[str, int])
    assert_type(batch.policy_version, int)
    assert_type(batch.bind(log_probs=scores, auxiliary=scores), WideStep)


class Plain:
    """The least that policy_loss takes: a method."""

    def terms(self, batch: PolicyBatch, /) -> Terms:
        return Terms(-read(batch, "advantages") * read(batch, "log_probs"), Metrics())


@dataclass(frozen=True)
class Scaled:
    """Options in a dataclass, another name for the batch, a wider schema."""

    scale: float
    correction: ClassVar[str] = "inside"

    def terms(self, step: OffPolicyMaskBatch) -> Terms:
        log_probs = read(step, "log_probs")
        ratio = (log_probs - read(step, "rollout_log_probs", like=log_probs)).exp()
        return Terms(-self.scale * ratio, Metrics({"ratio": mean(ratio, step.loss_mask)}))


class Own(Objective):
    """The same as an objective, with what the registry wants to know."""

    name = "own"
    formula = "-A l"
    paper = "https://example.org"
    known_as: ClassVar[Mapping[str, str]] = {}
    reads = AdvantageBatch

    gain: float = 1.0

    def terms(self, batch: AdvantageBatch, /) -> Terms:
        return Terms(-self.gain * read(batch, "advantages") * read(batch, "log_probs"), Metrics())


class Squared(SampledKL):
    """A KL estimate of a user."""

    name = "squared"
    formula = "x^2"
    known_as: ClassVar[Mapping[str, str]] = {}

    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        return log_ratio.square()


class Mixed(KLEstimator):
    """One from the batch."""

    name = "mixed"
    formula = "x"
    known_as: ClassVar[Mapping[str, str]] = {}
    reads = KLBatch

    def terms(self, batch: KLBatch, /) -> Terms:
        return Terms(read(batch, "log_probs") - read(batch, "ref_log_probs"), Metrics())


def losses(term: TokenTerm[PolicyBatch], objective: Objective) -> Loss:
    """A term that reads less than the batch has is good for it; so is one that nobody knows more about."""
    total = assert_type(policy_loss(policy, Plain()), Loss)
    total += (
        policy_loss(step, Plain()) + policy_loss(everything, Scaled(scale=2.0)) + policy_loss(policy, Own(gain=2.0))
    )
    total += policy_loss(step, term) + policy_loss(everything, term) + policy_loss(live, objective)
    total += policy_loss(everything, DPPO()) - policy_loss(everything, OPSM(objective=PPOClip()))
    return total + 0.1 * kl_loss(everything, Squared(input_bound=20.0)) + kl_loss(everything, Mixed())


BatchT = TypeVar("BatchT", bound=RolloutBatch)
StepT = TypeVar("StepT", bound=PolicyBatch)


def any_loss(batch: BatchT, term: TokenTerm[BatchT]) -> Loss:
    """A loss over any term passes both on."""
    return policy_loss(batch, term) * 0.5


def own_loss(batch: StepT) -> tuple[StepT, Loss]:
    """A loss function of one's own, without a term."""
    terms = -read(batch, "advantages") * read(batch, "log_probs")
    return batch, weighted_sum(batch, terms, {"loss": mean(terms, batch.loss_mask)}, "multiplies")


def use(batch: Everything) -> None:
    assert_type(any_loss(batch, PPOClip()), Loss)
    assert_type(own_loss(batch), tuple[Everything, Loss])


def twice(batch: TISBatch) -> Correction:
    """A correction is any function from a batch to a Correction."""
    return Correction(batch, weights=(batch.old_log_probs - batch.rollout_log_probs).exp() * 2)


def only_tools(batch: ToolStep) -> Correction:
    return Correction(batch, mask=batch.loss_mask & ~batch.tool_mask)


def corrections(batch: WideStep) -> WideStep:
    assert_type(Truncate() & twice, Combined)
    assert_type((Truncate() & twice)(batch), Correction)
    assert_type(Normalize(rule=twice)(tis), Correction)
    batch = batch.corrected(twice(batch) & only_tools(batch))
    return assert_type(batch.weighted("token-mean", scale=2.0), WideStep)


def ratio(log_probs: TrainableTensor, old_log_probs: FixedTensor) -> Tensor:
    """A function of tensors says which it differentiates, and which it only reads."""
    return (log_probs - old_log_probs).exp()


def ratios(batch: WideStep) -> Tensor:
    return ratio(batch.log_probs, batch.old_log_probs) + ratio(batch.log_probs, batch.rollout_log_probs)


def k2() -> TokenTerm[KLBatch]:
    return K2()
