"""The schemas that the losses and estimators read. Inherit from those of the losses that you feed.

    class MyStep(PolicyBatch, TISBatch, KLBatch):
        "What our GRPO step trains on."

Dimensions: ``tokens`` (response tokens of all samples, end to end), ``batch`` (samples), ``groups`` (distinct group
ids), ``sequence`` (tokens of prompts and responses), then any further names of your own. Log-probs are in nats, and
entry t scores response token t itself.
"""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.roles import AllowNaN, AnyDevice, Fixed, PerSample, Trainable, unbound
from rollout_contract.schema.batch import RolloutBatch


class LiveBatch(RolloutBatch):
    """Log-probs of the current policy, bound after each forward pass: the only field that most losses train."""

    log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()


class Scored(LiveBatch):
    """Log-probs that the trainer's policy gave at the start of the step."""

    old_log_probs: Fixed[Float[Tensor, "tokens"]]


class AdvantageBatch(LiveBatch):
    """Advantages per token: what the plain policy gradient reads."""

    advantages: Fixed[Float[Tensor, "tokens"]]


class PolicyBatch(Scored, AdvantageBatch):
    """What most policy objectives read: advantages, and the scores that their ratio is taken against."""


class RolloutScored(RolloutBatch):
    """Log-probs that the sampler gave when it generated the tokens (the behaviour policy)."""

    rollout_log_probs: Fixed[Float[Tensor, "tokens"]]


class TISBatch(Scored, RolloutScored):
    """What a correction of the mismatch between sampler and trainer reads."""


class RolloutPolicyBatch(AdvantageBatch, RolloutScored):
    """What policy objectives read whose ratio is taken against the sampler itself."""


class KLBatch(LiveBatch):
    """Log-probs of the reference policy."""

    ref_log_probs: Fixed[Float[Tensor, "tokens"]]


class ScoredKLBatch(KLBatch, Scored):
    """What the KL in the reward reads, and the KL loss with a live importance weight."""


class BehaviourKLBatch(KLBatch, RolloutScored):
    """What the KL loss reads whose weight is taken against the sampler."""


class TeacherBatch(LiveBatch):
    """Log-probs that a teacher gives the student's own tokens; they may lie on another device."""

    teacher_log_probs: Fixed[Annotated[Float[Tensor, "tokens"], AnyDevice]]


class OPDBatch(Scored, TeacherBatch):
    """What on-policy distillation reads: scores of the teacher and of the student that made the tokens."""


class RolloutTeacherBatch(TeacherBatch, RolloutScored):
    """What distillation losses read that compare with the sampler."""


class TeachersBatch(RolloutBatch):
    """Scores of several teachers, and how much each of them counts for a sample (see ``mixed_teacher``)."""

    teachers_log_probs: Fixed[Annotated[Float[Tensor, "tokens teachers"], AnyDevice]]
    teacher_weights: Fixed[Float[Tensor, "batch teachers"]]


class TopKBatch(RolloutBatch):
    """A few outcomes per token: their ids, the teacher's log-probs of them, and the student's, live.

    A divergence over a top-k set is no advantage: as a constant it does not depend on the sampled token, and its
    expected gradient is zero. So the student's side is trainable, and nothing takes it as a number.

    ``topk_mask`` says which entries belong to the set; all of them when it is absent. What stands in the others is not
    read, but must be finite.
    """

    topk_ids: Fixed[Int[Tensor, "tokens topk"]]
    teacher_topk_log_probs: Fixed[Annotated[Float[Tensor, "tokens topk"], AnyDevice]]
    topk_mask: Fixed[Bool[Tensor, "tokens topk"]] = unbound()
    topk_log_probs: Trainable[Float[Tensor, "tokens topk"]] = unbound()


class DivergenceBatch(RolloutBatch):
    """A divergence between student and teacher at each token, live (see ``rollout_contract.distillation``)."""

    divergence: Trainable[Float[Tensor, "tokens"]] = unbound()


class ReverseKLBatch(RolloutBatch):
    """A precomputed reverse KL (student minus teacher) per token."""

    reverse_kl: Fixed[Float[Tensor, "tokens"]]


class ValueBatch(RolloutBatch):
    """What ``value_loss`` reads: the critic's values at the start of the step, returns, and its live predictions."""

    values: Fixed[Float[Tensor, "tokens"]]
    returns: Fixed[Float[Tensor, "tokens"]]
    value_predictions: Trainable[Float[Tensor, "tokens"]] = unbound()


class EntropyBatch(RolloutBatch):
    """Entropy of the current policy at each token, live."""

    entropy: Trainable[Float[Tensor, "tokens"]] = unbound()


class TopKEntropyBatch(TopKBatch, EntropyBatch):
    """A top-k set with the student's whole entropy, from which the entropy outside the set follows."""


class ObservedEntropyBatch(RolloutBatch):
    """Entropy that is only looked at: for metrics, and for masks that keep the tokens of high entropy."""

    observed_entropy: Fixed[Float[Tensor, "tokens"]] = unbound()


class OffPolicyMaskBatch(PolicyBatch, TISBatch):
    """What off-policy sequence masking reads: the policy's fields and the sampler's scores."""


class EntropyMaskBatch(PolicyBatch, ObservedEntropyBatch):
    """What masking by entropy reads: the policy's fields and an entropy that is only looked at."""


class RewardBatch(RolloutBatch):
    """One reward per sample; NaN for a sample that could not be scored, which estimators leave out."""

    rewards: Fixed[Annotated[Float[Tensor, "batch"], AllowNaN]]


class PositiveBatch(LiveBatch):
    """What the likelihood term of positive examples reads (see ``positive_example_weights``)."""

    positive_weights: Fixed[Float[Tensor, "tokens"]]


class OptimalAdvantageBatch(KLBatch, RewardBatch):
    """What A*-PO reads: rewards, reference scores, and the optimal value of each sample's prompt."""

    optimal_values: Fixed[Float[Tensor, "batch"]]


class TokenRewardBatch(RolloutBatch):
    """One reward per token; the outcome's reward sits on the last trained token (see ``place_rewards``)."""

    token_rewards: Fixed[Float[Tensor, "tokens"]]


class KLRewardBatch(ScoredKLBatch, TokenRewardBatch):
    """Token rewards, and the scores whose KL is taken off them."""


class GAEBatch(TokenRewardBatch):
    """What generalised advantage estimation reads."""

    values: Fixed[Float[Tensor, "tokens"]]


class BootstrappedGAEBatch(GAEBatch):
    """For responses that were cut off: the critic's value of what would have followed, 0 for a finished response."""

    final_values: Fixed[Float[Tensor, "batch"]]


class ReMaxBatch(TokenRewardBatch):
    """What ReMax reads: token rewards, and the reward of the greedy response to each sample's prompt."""

    reward_baselines: Fixed[Float[Tensor, "batch"]]


class OTBBatch(Scored, TokenRewardBatch):
    """What the optimal token baseline reads: at each token also the sum of all squared probabilities of the policy."""

    sum_pi_squared: Fixed[Float[Tensor, "tokens"]]


class RewardComponentsBatch(RolloutBatch):
    """Several rewards per sample, such as correctness, format and length (see ``gdpo``)."""

    reward_components: Fixed[Annotated[Float[Tensor, "batch components"], AllowNaN]]


class RoleRewardBatch(RewardBatch):
    """Rewards of players, and the role that each sample played (see ``role_conditioned``)."""

    roles: PerSample[str]
