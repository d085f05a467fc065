"""PPO's clipped surrogate with one ratio per token: the objective of GRPO, DAPO, Dr.GRPO and many others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rollout_contract.losses.inputs import read
from rollout_contract.objectives.base import Terms
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class PPOClip(ClippedObjective):
    """PPO clip with r_t = exp(log_probs_t - old_log_probs_t) (Schulman et al., arXiv:1707.06347).

    The gradient of token t is -r A where the ratio lies inside its bounds (at a bound as well), else 0. At r = 1, as in
    the first update after the scores were made, it is -A: the plain policy gradient.

    In bypass mode the old policy is the one that made the rollouts: build the batch with its log-probs as
    ``old_log_probs`` and apply no importance weights.
    """

    name = "ppo_clip"
    formula = "r = exp(l - l_old); L = max(-r A, -clip(r, 1 - eps_low, 1 + eps_high) A); for A < 0: L = min(L, -c A)"
    paper = "arXiv:1707.06347"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--advantage-estimator grpo | ppo | reinforce_plus_plus",
        "slime": "--advantage-estimator grpo | ppo | reinforce_plus_plus",
        "verl": "policy_loss.loss_mode=vanilla",
        "TRL": "loss_type=grpo | bnpo | dr_grpo | dapo",
        "OpenRLHF": "--policy_loss_type ppo",
        "NeMo-RL": "disable_ppo_ratio=false",
        "AReaL": "importance_sampling_level=token, use_sapo_loss=false",
        "SkyRL": "policy_loss_type=regular | dual_clip",
        "Liger": "loss_type=grpo | bnpo | dr_grpo | dapo",
        "Tinker": "loss_fn=ppo",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        return self.clipped_terms(log_ratio, read(batch, "advantages", like=log_probs), batch.loss_mask)
