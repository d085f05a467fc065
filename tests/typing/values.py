"""Batches and tensors that the other files use. Never executed."""

from __future__ import annotations

from torch import Tensor

from rollout_contract import (
    FixedTensor,
    KLBatch,
    OPDBatch,
    PolicyBatch,
    RewardBatch,
    RolloutBatch,
    TISBatch,
    TrainableTensor,
    ValueBatch,
)
from rollout_contract.schemas import (
    AdvantageBatch,
    DivergenceBatch,
    EntropyBatch,
    GAEBatch,
    LiveBatch,
    OffPolicyMaskBatch,
    ReverseKLBatch,
    RolloutPolicyBatch,
    ScoredKLBatch,
    TeacherBatch,
    TokenRewardBatch,
    TopKBatch,
)


class Step(PolicyBatch):
    """A batch of a user."""


class Everything(OffPolicyMaskBatch, RolloutPolicyBatch, KLBatch, OPDBatch, ValueBatch, EntropyBatch, RewardBatch):
    """What a step with every loss reads, combined."""


mask: Tensor
scores: Tensor
fixed: FixedTensor
trainable: TrainableTensor

step: Step
everything: Everything
rollouts: RolloutBatch
live: LiveBatch
advantage: AdvantageBatch
policy: PolicyBatch
tis: TISBatch
rollout_policy: RolloutPolicyBatch
kl: KLBatch
scored_kl: ScoredKLBatch
opd: OPDBatch
teacher: TeacherBatch
topk: TopKBatch
divergence: DivergenceBatch
reverse: ReverseKLBatch
value: ValueBatch
entropy: EntropyBatch
reward: RewardBatch
token_reward: TokenRewardBatch
gae_batch: GAEBatch
