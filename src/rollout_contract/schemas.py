"""The schemas that the losses and estimators read. Inherit from those of the losses that you feed.

    class MyStep(PolicyBatch, TISBatch, KLBatch):
        "What our GRPO step trains on."

Dimensions: ``tokens`` (response tokens of all samples, end to end), ``batch`` (samples), ``groups`` (distinct group
ids), ``sequence`` (tokens of prompts and responses), then any further names of your own. Log-probs are in nats, and
entry t scores response token t itself.
"""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from rollout_contract.roles import AnyDevice, Fixed, Trainable, unbound
from rollout_contract.schema.batch import RolloutBatch


class LiveBatch(RolloutBatch):
    """Log-probs of the current policy, bound after each forward pass: the only field that most losses train."""

    log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()


class Scored(LiveBatch):
    """Log-probs that the trainer's policy gave at the start of the step."""

    old_log_probs: Fixed[Float[Tensor, "tokens"]]


class PolicyBatch(Scored):
    """What ``policy_loss`` reads: advantages per token."""

    advantages: Fixed[Float[Tensor, "tokens"]]


class RolloutScored(RolloutBatch):
    """Log-probs that the sampler gave when it generated the tokens (the behaviour policy)."""

    rollout_log_probs: Fixed[Float[Tensor, "tokens"]]


class TISBatch(Scored, RolloutScored):
    """What a correction of the mismatch between sampler and trainer reads."""


class KLBatch(LiveBatch):
    """Log-probs of the reference policy."""

    ref_log_probs: Fixed[Float[Tensor, "tokens"]]


class OPDBatch(Scored):
    """Log-probs that a teacher gives the student's own tokens; they may lie on another device."""

    teacher_log_probs: Fixed[Annotated[Float[Tensor, "tokens"], AnyDevice]]


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


class ObservedEntropyBatch(RolloutBatch):
    """Entropy that is only looked at: for metrics, and for masks that keep the tokens of high entropy."""

    observed_entropy: Fixed[Float[Tensor, "tokens"]] = unbound()


class RewardBatch(RolloutBatch):
    """One reward per sample."""

    rewards: Fixed[Float[Tensor, "batch"]]


class TokenRewardBatch(RolloutBatch):
    """One reward per token; the outcome's reward sits on the last trained token (see ``place_rewards``)."""

    token_rewards: Fixed[Float[Tensor, "tokens"]]


class GAEBatch(TokenRewardBatch):
    """What generalised advantage estimation reads."""

    values: Fixed[Float[Tensor, "tokens"]]
