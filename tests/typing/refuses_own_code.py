"""Terms, objectives, corrections and schemas of a user with a wrong signature. Each line marked E must be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tests.typing.values import kl, policy, rollout_policy, scores, step, tis
from torch import Tensor

from rollout_contract import Aggregation, FixedTensor, Loss, PolicyBatch, RolloutBatch, kl_loss, policy_loss, unbound
from rollout_contract.corrections import Combined, Correction, CorrectionRule, Normalize, Truncate
from rollout_contract.kl import K3, SampledKL, StraightThroughKL
from rollout_contract.layout import Layout
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.losses.term import Terms, TokenTerm, token_loss
from rollout_contract.metrics import Metrics, mean
from rollout_contract.objectives import OPSM, Objective, PPOClip
from rollout_contract.schemas import KLBatch, RolloutPolicyBatch, TISBatch


class NoTerms:
    """A policy objective of another library."""

    def __call__(self, batch: PolicyBatch) -> Tensor:
        raise NotImplementedError


class TensorTerms:
    """No metrics."""

    def terms(self, batch: PolicyBatch, /) -> Tensor:
        raise NotImplementedError


class TwoBatches:
    def terms(self, batch: PolicyBatch, reference: KLBatch, /) -> Terms:
        raise NotImplementedError


class OfTensors:
    def terms(self, log_probs: Tensor, /) -> Terms:
        raise NotImplementedError


class NoArgument:
    def terms(self) -> Terms:
        raise NotImplementedError


class KeywordOnly:
    def terms(self, *, batch: PolicyBatch) -> Terms:
        raise NotImplementedError


class Asynchronous:
    async def terms(self, batch: PolicyBatch, /) -> Terms:
        raise NotImplementedError


class AgainstSampler:
    """Good, for a batch with the scores of the sampler."""

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:
        raise NotImplementedError


def terms() -> None:
    policy_loss(policy, NoTerms())  # E
    policy_loss(policy, TensorTerms())  # E
    policy_loss(policy, TwoBatches())  # E
    policy_loss(policy, OfTensors())  # E
    policy_loss(policy, NoArgument())  # E
    policy_loss(policy, KeywordOnly())  # E
    policy_loss(policy, Asynchronous())  # E
    policy_loss(policy, AgainstSampler())  # E: no rollout_log_probs
    policy_loss(step, AgainstSampler())  # E: nor in a subclass
    policy_loss(rollout_policy, AgainstSampler())
    policy_loss(policy, AgainstSampler)  # E: a class
    policy_loss(policy, lambda batch: Terms(scores, Metrics()))  # E: a function
    kl_loss(policy, AgainstSampler())  # E
    token_loss("own", policy, PPOClip())  # E: what becomes of a correction?
    token_loss("own", policy, PPOClip(), "mutiplies")  # E
    Terms(scores)  # E: metrics
    Terms(scores, {"ratio": 1.0})  # E: not numbers, they would not merge
    mean(step, scores)  # E
    Metrics({"ratio": scores})  # E


class NoSchema(Objective):
    name = "no_schema"

    def terms(self, batch: PolicyBatch) -> Tensor:  # E
        raise NotImplementedError


class Numbered(Objective):
    name = 3  # E
    reads = PPOClip  # E
    correction = "both"  # E

    def terms(self, batch: PolicyBatch, /) -> Terms:
        raise NotImplementedError


class NeedsMore(PPOClip):
    """An objective that reads more than the one that it inherits from breaks every caller of that one."""

    def terms(self, batch: RolloutPolicyBatch, /) -> Terms:  # E
        raise NotImplementedError


class WrongEstimate(SampledKL):
    def estimate(self, log_ratio: Tensor, reference: Tensor, /) -> Tensor:  # E
        raise NotImplementedError


def objectives(term: TokenTerm[RolloutPolicyBatch]) -> None:
    OPSM(objective="ppo_clip")  # E[mypy, pyright]: an objective
    OPSM(objective=Truncate())  # E[mypy, pyright]: a correction
    StraightThroughKL(estimator=PPOClip())  # E[mypy, pyright]
    StraightThroughKL(estimator=K3)  # E[mypy, pyright]: a class
    policy_loss(policy, term)  # E: the term needs rollout_log_probs
    Objective()  # E: abstract


def weights_only(batch: TISBatch) -> Tensor:
    raise NotImplementedError


def two_arguments(batch: TISBatch, cap: float) -> Correction:
    raise NotImplementedError


def no_batch() -> Correction:
    raise NotImplementedError


def own_tis(batch: TISBatch) -> Correction:
    return Correction(batch, weights=(batch.old_log_probs - batch.rollout_log_probs).exp())


class NoCorrection(CorrectionRule):
    def __call__(self, batch: TISBatch, /) -> Tensor:  # E[mypy, pyright]
        raise NotImplementedError


def corrections(x: Tensor) -> None:
    own_tis(policy)  # E: no rollout_log_probs
    own_tis(x)  # E
    policy.corrected(own_tis(kl))  # E
    policy.corrected(own_tis)  # E: the function needs rollout_log_probs
    tis.corrected(weights_only(tis))  # E: a tensor
    tis.corrected(weights_only)  # E: a function that gives a tensor
    print(Truncate() & weights_only)  # E: no Correction
    print(Truncate() & two_arguments)  # E
    print(Truncate() & no_batch)  # E
    print(Truncate() & own_tis(tis))  # E: a Correction, not a rule
    Normalize(rule=weights_only)  # E[mypy, pyright]
    Normalize(rule=Truncate)  # E[mypy, pyright]: a class
    Combined(rules=(weights_only,))  # E[mypy, pyright]
    Correction(weights=x)  # E: of which rows?
    Correction(tis, x)  # E: weights, or a mask?
    Correction(tis, weights=[1.0, 2.0])  # E
    Correction(tis, metrics={"ratio": 1.0})  # E


StepT = TypeVar("StepT", bound=PolicyBatch)


def own_loss(batch: StepT) -> tuple[StepT, Loss]:
    return batch, weighted_sum(batch, read(batch, "advantages"))


def functions(x: Tensor) -> None:
    own_loss(kl)  # E
    own_loss(tis)  # E
    weighted_sum(policy, 1.0)  # E
    weighted_sum(x, x)  # E
    weighted_sum(policy, x, {}, "multiply")  # E
    read(x, "advantages")  # E
    read(policy)  # E
    Aggregation(mode="mean")  # E
    Aggregation("token-mean")  # E
    Aggregation(mode="constant", constant=[1024.0])  # E
    Layout(3)  # E
    Layout([3, 2]).expand([1.0, 2.0])  # E


class OwnSchema(RolloutBatch):
    """A schema may add methods, but no field that is no field."""

    def names(self) -> Mapping[str, FixedTensor]:
        return {"mask": self.loss_mask}


class LateRequired(PolicyBatch):
    """Methods of a batch keep their signature."""

    def split(self, parts: int) -> list[LateRequired]:  # E
        raise NotImplementedError

    def bind(self, log_probs: Tensor) -> LateRequired:  # E
        raise NotImplementedError


def own_schemas(own: OwnSchema) -> None:
    own.names()["mask"] = scores  # E
    own.summary(1)  # E
    unbound(1)  # E


class SubclassedCorrection(Correction):  # E: final; write a function
    pass
