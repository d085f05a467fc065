"""A loss, an estimator or a correction on a batch without its fields. Each line marked E must be refused."""

from __future__ import annotations

from tests.typing.values import (
    advantage,
    divergence,
    entropy,
    everything,
    gae_batch,
    kl,
    live,
    policy,
    reward,
    rollout_policy,
    rollouts,
    scored_kl,
    scores,
    step,
    teacher,
    tis,
    token_reward,
    topk,
    value,
)
from torch import Tensor

from rollout_contract import Loss, PolicyBatch, TISBatch, entropy_bonus, kl_loss, policy_loss, value_loss
from rollout_contract import objectives as o
from rollout_contract.advantages import (
    gae,
    gdpo,
    grpo,
    optimal_token_baseline,
    place_rewards,
    reinforce_plus_plus,
    remax,
    role_conditioned,
)
from rollout_contract.corrections import M2PO, IcePop, Normalize, Reject, Truncate
from rollout_contract.distillation import (
    FlooredTopKDivergence,
    FullVocabulary,
    SampledReverseKL,
    TopKDivergence,
    WeightedReverseKL,
    distillation_loss,
    mixed_teacher,
    opd_advantages,
)
from rollout_contract.kl import K1, K2, BehaviourKL, UnbiasedKL
from rollout_contract.kl_reward import kl_penalty, penalised_rewards
from rollout_contract.losses.entropy import entropy_metrics
from rollout_contract.losses.value import CriticError
from rollout_contract.mismatch import mismatch_metrics


class SameFields(PolicyBatch, TISBatch):
    """It has what OPSM reads, but does not inherit from that schema: good enough at run time, not for a checker."""


def policy_losses(same_fields: SameFields) -> None:
    policy_loss(kl, o.PPOClip())  # E: no advantages
    policy_loss(tis, o.PPOClip())  # E: no advantages
    policy_loss(advantage, o.PPOClip())  # E: no old_log_probs
    policy_loss(live, o.PPOClip())  # E: neither
    policy_loss(rollouts, o.PPOClip())  # E: not even log_probs
    policy_loss(advantage, o.GSPO())  # E
    policy_loss(advantage, o.CISPO())  # E
    policy_loss(advantage, o.SAPO())  # E
    policy_loss(advantage, o.GMPO())  # E
    policy_loss(advantage, o.VESPO())  # E
    policy_loss(advantage, o.DRO())  # E
    policy_loss(advantage, o.ClipCov())  # E
    policy_loss(advantage, o.KLCov())  # E
    policy_loss(advantage, o.ImportanceSampling())  # E
    policy_loss(kl, o.Reinforce())  # E: no advantages
    policy_loss(rollouts, o.NLL())  # E: no log_probs
    policy_loss(policy, o.DPPO())  # E: no rollout_log_probs
    policy_loss(policy, o.RolloutIS())  # E: no rollout_log_probs
    policy_loss(policy, o.RolloutCISPO())  # E: no rollout_log_probs
    policy_loss(policy, o.RolloutReinforce())  # E: no rollout_log_probs
    policy_loss(policy, o.TOPR())  # E: no rollout_log_probs
    policy_loss(policy, o.ProbabilityMask())  # E: no rollout_log_probs
    policy_loss(policy, o.OPSM())  # E: no rollout_log_probs
    policy_loss(policy, o.TopEntropy())  # E: no observed_entropy
    policy_loss(policy, o.PositiveNLL())  # E: no positive_weights
    policy_loss(policy, o.OptimalAdvantage())  # E: no rewards
    policy_loss(rollout_policy, o.PPOClip())  # E: no old_log_probs
    policy_loss(policy, SampledReverseKL())  # E: no teacher_log_probs
    policy_loss(teacher, WeightedReverseKL())  # E: no old_log_probs
    policy_loss(same_fields, o.OPSM())  # E: inherit from OffPolicyMaskBatch
    policy_loss(reward, K2())  # E


def other_losses() -> None:
    kl_loss(policy, K2())  # E: no ref_log_probs
    kl_loss(tis, K2())  # E: no ref_log_probs
    kl_loss(kl, UnbiasedKL())  # E: no old_log_probs
    kl_loss(scored_kl, BehaviourKL())  # E: no rollout_log_probs
    kl_loss(kl, o.PPOClip())  # E: an objective
    value_loss(policy)  # E: no values
    value_loss(gae_batch)  # E: no returns
    value_loss(value, o.PPOClip())  # E: not an error of the critic
    entropy_bonus(policy)  # E: no entropy
    entropy_metrics(entropy)  # E: that one is live
    distillation_loss(policy, FullVocabulary())  # E: no divergence
    distillation_loss(topk, FullVocabulary())  # E: no divergence
    distillation_loss(divergence, TopKDivergence())  # E: no top-k set
    distillation_loss(topk, FlooredTopKDivergence())  # E: no entropy
    distillation_loss(teacher, TopKDivergence())  # E: no top-k set


def arguments(x: Tensor) -> None:
    policy_loss(step)  # E: which objective?
    policy_loss(o.PPOClip(), step)  # E: swapped
    policy_loss(step, o.PPOClip)  # E: a class
    policy_loss(step, "ppo_clip")  # E: a name
    policy_loss(x, o.PPOClip())  # E: a tensor
    policy_loss([step], o.PPOClip())  # E: a list of micro-batches
    policy_loss(log_probs=x, old_log_probs=x, advantages=x)  # E: only batches, never tensors
    kl_loss(x, K2())  # E
    kl_loss(kl, 0.1)  # E: multiply the loss
    kl_loss(kl)  # E: which estimator?
    value_loss(x)  # E
    entropy_bonus(x)  # E
    o.PPOClip(0.2)  # E: options have names
    o.PPOClip(clip_hgih=0.3)  # E
    o.PPOClip(clip_high=[0.3])  # E
    o.PPOClip(objective="grpo")  # E
    K2(bound=20.0)  # E
    CriticError(clip_range=0.2)  # E
    UnbiasedKL(level="group")  # E
    print(policy_loss(step, o.PPOClip()).item())  # E: a Loss, not a tensor


def sums(loss: Loss, x: Tensor) -> None:
    print(loss + 1.0)  # E
    print(loss * loss)  # E
    print(loss / 2)  # E
    print(loss - x)  # E
    print(sum([loss, loss]))  # E: starts from 0
    loss.backward(x)  # E


def corrections() -> None:
    Truncate()(policy)  # E: no rollout_log_probs
    IcePop()(policy)  # E
    Reject()(kl)  # E
    M2PO()(rollout_policy)  # E: no old_log_probs
    Normalize(rule=Truncate())(policy)  # E
    (Truncate() & Reject())(policy)  # E
    policy.corrected(Truncate())  # E: no rollout_log_probs
    tis.corrected(tis.old_log_probs)  # E: raw weights
    Truncate(2.0)  # E
    Truncate(cap=2.0)  # E: the name of another trainer
    Truncate(level="batch")  # E
    mismatch_metrics(policy)  # E


def estimators(x: Tensor) -> None:
    grpo(policy)  # E: no rewards
    grpo(token_reward)  # E: one reward per sample
    grpo(x)  # E: no tensors
    grpo(reward, scale="std")  # E
    grpo(reward, "group")  # E: options have names
    gae(reward)  # E: no token rewards, no values
    gae(token_reward)  # E: no values
    gae(gae_batch, lam="0.95")  # E
    gdpo(reward)  # E: no components
    remax(token_reward)  # E: no reward_baselines
    optimal_token_baseline(token_reward)  # E: no old_log_probs
    reinforce_plus_plus(reward)  # E: one reward per token
    role_conditioned(reward)  # E: no roles
    place_rewards(token_reward)  # E
    kl_penalty(kl)  # E: no old_log_probs
    kl_penalty(scored_kl, UnbiasedKL())  # E: not a plain estimate
    penalised_rewards(token_reward, 0.1)  # E: no scores
    opd_advantages(policy)  # E: no teacher_log_probs
    mixed_teacher(teacher)  # E: one teacher
    print(everything.extend(PolicyBatch, advantages=grpo(reward)).rewards)  # E
    print(K1(), scores)
