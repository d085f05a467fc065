"""PPO clip on the probability ratio of the whole response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rollout_contract.kernels.ratio import sequence_sum_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.objectives.base import Terms
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.objectives.observe import segments
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import PolicyBatch


class ProductClip(ClippedObjective):
    """PPO clip with r_i = exp(sum over the trained tokens of l - l_old), the response seen as one action.

    Ahmadian et al., arXiv:2402.14740, as TRL's RLOO trainer writes it. The product of many ratios leaves the clip range
    quickly. Use it with "seq-mean-token-mean": the loss is then the mean over samples.
    """

    name = "product_clip"
    formula = "r = exp(sum_m(l - l_old)); L = max(-r A, -clip(r, 1 - eps_low, 1 + eps_high) A)"
    paper = "arXiv:2402.14740"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "RLOOTrainer"}
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    def terms(self, batch: PolicyBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_ratio = log_probs - read(batch, "old_log_probs", like=log_probs)
        total = sequence_sum_log_ratio(log_ratio, *segments(batch))
        return self.clipped_terms(total, read(batch, "advantages", like=log_probs), batch.loss_mask)
