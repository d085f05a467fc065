"""Every loss, term, correction and estimator of the library, on the schema that it reads. Never executed."""

from __future__ import annotations

from tests.typing.values import (
    advantage,
    divergence,
    entropy,
    kl,
    live,
    opd,
    policy,
    rollout_policy,
    scored_kl,
    teacher,
    tis,
    topk,
    value,
)

from rollout_contract import entropy_bonus, kl_loss, policy_loss, value_loss
from rollout_contract import kl as estimators
from rollout_contract import objectives as o
from rollout_contract.corrections import M2PO, IcePop, Normalize, Reject, Truncate
from rollout_contract.distillation import (
    FlooredTopKDivergence,
    FrontLoadedReverseKL,
    FullVocabulary,
    RolloutReverseKL,
    SampledReverseKL,
    TopKDivergence,
    TopKReverseKL,
    WeightedReverseKL,
    distillation_loss,
)
from rollout_contract.losses.entropy import entropy_metrics
from rollout_contract.losses.value import CriticError
from rollout_contract.schemas import (
    BehaviourKLBatch,
    EntropyMaskBatch,
    ObservedEntropyBatch,
    OffPolicyMaskBatch,
    OptimalAdvantageBatch,
    PositiveBatch,
    RolloutTeacherBatch,
    TopKEntropyBatch,
)


def of_the_policy() -> None:
    policy_loss(policy, o.PPOClip(clip_high=0.28, dual_clip=3.0))
    policy_loss(policy, o.GSPO())
    policy_loss(policy, o.GSPOToken())
    policy_loss(policy, o.LUSPO())
    policy_loss(policy, o.ProductClip())
    policy_loss(policy, o.CISPO())
    policy_loss(policy, o.SAPO())
    policy_loss(policy, o.GMPO())
    policy_loss(policy, o.VESPO())
    policy_loss(policy, o.ImportanceSampling())
    policy_loss(policy, o.ProximalDPPO())
    policy_loss(policy, o.ClipCov())
    policy_loss(policy, o.KLCov())
    policy_loss(policy, o.DRO())
    policy_loss(policy, o.ProximalOPSM())
    policy_loss(advantage, o.Reinforce())
    policy_loss(advantage, o.GPG())
    policy_loss(advantage, o.OnPolicyRatio())
    policy_loss(live, o.NLL())


def of_the_sampler(masked: OffPolicyMaskBatch, seen: EntropyMaskBatch, positive: PositiveBatch) -> None:
    policy_loss(rollout_policy, o.RolloutCISPO())
    policy_loss(rollout_policy, o.RolloutIS())
    policy_loss(rollout_policy, o.RolloutReinforce())
    policy_loss(rollout_policy, o.TOPR())
    policy_loss(rollout_policy, o.DPPO())
    policy_loss(rollout_policy, o.ProbabilityMask())
    policy_loss(masked, o.OPSM())
    policy_loss(seen, o.TopEntropy())
    policy_loss(positive, o.PositiveNLL())


def of_the_teacher(rollout_teacher: RolloutTeacherBatch, tail: TopKEntropyBatch) -> None:
    policy_loss(teacher, SampledReverseKL())
    policy_loss(opd, WeightedReverseKL())
    policy_loss(rollout_teacher, RolloutReverseKL())
    policy_loss(rollout_teacher, FrontLoadedReverseKL())
    distillation_loss(divergence, FullVocabulary())
    distillation_loss(topk, TopKDivergence(beta=0.5))
    distillation_loss(topk, TopKReverseKL(weights="teacher"))
    distillation_loss(tail, FlooredTopKDivergence())


def of_the_rest(behaviour: BehaviourKLBatch, seen: ObservedEntropyBatch, best: OptimalAdvantageBatch) -> None:
    policy_loss(best, o.OptimalAdvantage(beta=1.0))
    kl_loss(kl, estimators.K1())
    kl_loss(kl, estimators.K2())
    kl_loss(kl, estimators.K3(output_bound=10.0))
    kl_loss(kl, estimators.LowVarKL())
    kl_loss(kl, estimators.AbsoluteKL())
    kl_loss(kl, estimators.StraightThroughKL(estimator=estimators.K1()))
    kl_loss(kl, estimators.ScoreFunctionKL())
    kl_loss(scored_kl, estimators.UnbiasedKL(level="sequence"))
    kl_loss(behaviour, estimators.BehaviourKL())
    value_loss(value)
    value_loss(value, CriticError(clip=0.2, half=False))
    entropy_bonus(entropy)
    entropy_metrics(seen)


def corrections() -> None:
    Truncate(high=2.0, only=Reject())(tis)
    IcePop(low=0.5)(tis)
    M2PO()(tis)
    Reject(statistic="k3", level="sequence-mean", high=0.01)(tis)
    Normalize(rule=Truncate(), per="sequence")(tis)
