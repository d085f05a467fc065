"""Group sequence policy optimisation: one clipped ratio per sample, the geometric mean of its tokens' ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat
from torch import Tensor

from rollout_contract.kernels.ratio import sequence_mean_log_ratio, straight_through_log_ratio
from rollout_contract.kernels.segments import segment_count
from rollout_contract.kernels.sequence_policy import sequence_advantages
from rollout_contract.losses.inputs import read
from rollout_contract.objectives.base import Terms
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.objectives.observe import segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class GSPO(ClippedObjective):
    """PPO clip with s_i = exp(mean over the trained tokens of l - l_old), the gradient through the mean.

    Zheng et al., arXiv:2507.18071. Use it with a sequence aggregation ("seq-mean-token-mean"), as the paper does.
    verl's, SkyRL's and TRL's ``gspo_token`` are another objective, :class:`GSPOToken`: the same value, and the same
    gradient only when the advantage is constant within a sample.

    Attributes:
        clip_low, clip_high: as in PPO, but for the sequence ratio, which moves far less: 3e-4 and 4e-4 in the paper.
        average_advantages: replace each token's advantage by the mean over its sample. AReaL does; the others use each
            token's own, which is the same for advantages that are constant within a sample.
    """

    name = "gspo"
    formula = (
        "s = exp(mean_m(l - l_old)); L = max(-s A, -clip(s, 1 - eps_low, 1 + eps_high) A), gradient through the mean"
    )
    paper = "arXiv:2507.18071"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--advantage-estimator gspo",
        "slime": "--advantage-estimator gspo",
        "TRL": "importance_sampling_level=sequence",
        "OpenRLHF": "--policy_loss_type gspo",
        "NeMo-RL": "sequence_level_importance_ratios=true, token_level_loss=false",
        "AReaL": "importance_sampling_level=sequence",
        "Liger": "importance_sampling_level=sequence",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    clip_low: NonNegativeFloat = 3e-4
    clip_high: NonNegativeFloat = 4e-4
    average_advantages: bool = False

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        advantages = read(batch, "advantages", like=log_probs)
        if self.average_advantages:
            advantages = sequence_advantages(advantages, *segments(batch))
        mean = sequence_mean_log_ratio(log_ratio, *segments(batch))
        return self.clipped_terms(mean, advantages, batch.loss_mask)


class LUSPO(GSPO):
    """GSPO's loss times the number of trained tokens, so that length does not dilute it (arXiv:2602.05261).

    With "seq-mean-token-mean" the loss is the mean over samples of n_i L_i. That is GSPO under "seq-mean-token-sum";
    the factor is here so that choosing the objective is enough.
    """

    name = "luspo"
    formula = "s = exp(mean_m(l - l_old)); L = n max(-s A, -clip(s, 1 - eps_low, 1 + eps_high) A), n = trained tokens"
    paper = "arXiv:2602.05261"
    known_as: ClassVar[Mapping[str, str]] = {
        "TRL": "loss_type=luspo, importance_sampling_level=sequence",
        "Liger": "loss_type=luspo, importance_sampling_level=sequence",
    }

    def terms(self, batch: PolicyBatch, /) -> Terms:
        loss, found = super().terms(batch)
        return Terms(loss * _trained_tokens(batch).to(loss.dtype), found)


class GSPOToken(ClippedObjective):
    """PPO clip with the value of GSPO's ratio and the gradient of each token's own log-prob.

    log s_t = l_t - sg(l_t) + sg(mean over the trained tokens of l - l_old). arXiv:2507.18071, section 4.3: it allows
    advantages that differ within a sample; the gradient of token t is then s A_t.

    Attributes:
        clip_low, clip_high: as in :class:`GSPO`.
        log_ratio_cap: log s is at most this, without gradient beyond. verl and SkyRL cap at 10, TRL does not.
    """

    name = "gspo_token"
    formula = "log s_t = l_t - sg(l_t) + sg(mean_m(l - l_old)); L = max(-s A, -clip(s, 1 - eps_low, 1 + eps_high) A)"
    paper = "arXiv:2507.18071"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "policy_loss.loss_mode=gspo",
        "SkyRL": "policy_loss_type=gspo",
        "TRL": "experimental.gspo_token",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    clip_low: NonNegativeFloat = 3e-4
    clip_high: NonNegativeFloat = 4e-4
    log_ratio_cap: float | None = None

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        mean = sequence_mean_log_ratio(log_ratio, *segments(batch))
        straight = straight_through_log_ratio(log_probs, mean)
        if self.log_ratio_cap is not None:
            straight = straight.clamp(max=self.log_ratio_cap)
        return self.clipped_terms(straight, read(batch, "advantages", like=log_probs), batch.loss_mask)


def _trained_tokens(batch: PolicyBatch) -> Tensor:
    """[tokens]: how many trained tokens each token's sample has."""
    return batch.layout.expand(segment_count(*segments(batch)))
