"""Objectives that leave out some tokens of another objective, and keep the denominators of the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, SerializeAsAny
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.covariance import top_fraction
from rollout_contract.kernels.ratio import sequence_mean_log_ratio
from rollout_contract.losses.inputs import read, require
from rollout_contract.objectives.base import Consumption, Objective, Terms
from rollout_contract.objectives.observe import segments
from rollout_contract.objectives.ppo_clip import PPOClip
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import EntropyMaskBatch, OffPolicyMaskBatch, PolicyBatch


class Filtered(Objective, ABC):
    """Another objective, with loss 0 at the tokens that are not kept.

    The choice may depend on the live policy, so these tokens stay in the denominators of the loss; a rejection that
    depends on fixed fields alone is a correction's mask.

    Attributes:
        objective: whose tokens are filtered.
    """

    objective: SerializeAsAny[Objective] = PPOClip()

    @property
    def correction(self) -> Consumption:  # type: ignore[override]
        """That of the filtered objective."""
        return self.objective.correction

    @abstractmethod
    def keep(self, batch: Any, /) -> Tensor:
        """[tokens] bool, without a gradient."""

    def filtered_terms(self, batch: PolicyBatch) -> Terms:
        require(batch, self.objective.reads, type(self.objective).__name__)
        loss, found = self.objective.terms(batch)
        kept = self.keep(batch)
        dropped = metrics.fraction(~kept, batch.loss_mask)
        return Terms(loss.where(kept, 0.0), found.merge({f"{self.name}_dropped_fraction": dropped}))


class _OffPolicyMask(Filtered, ABC):
    delta: NonNegativeFloat = 0.1

    def _keep(self, batch: PolicyBatch, anchor: str) -> Tensor:
        log_probs = read(batch, "log_probs").detach()
        moved = read(batch, anchor, like=log_probs) - log_probs
        divergence = sequence_mean_log_ratio(moved, *segments(batch))
        return ~((read(batch, "advantages") < 0) & (divergence > self.delta))


class OPSM(_OffPolicyMask):
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556): drop bad samples that the policy has left behind.

    Token t is dropped if A_t < 0 and the sample's mean of rollout_log_probs - log_probs is above ``delta``. The
    divergence is measured from the policy that made the rollouts, as in the paper and in TRL; miles and slime measure
    it from the old policy (:class:`ProximalOPSM`), which cannot see the staleness of the rollouts themselves.

    Attributes:
        objective: whose tokens are filtered.
        delta: the largest divergence, in nats per token, that keeps a sample with A < 0.
    """

    name = "opsm"
    formula = "L = 0 if A < 0 and mean_m(l_rollout - l) > delta, else that of the filtered objective"
    paper = "arXiv:2512.02556"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "off_policy_mask_threshold, use_vllm=true"}
    reads: ClassVar[type[RolloutBatch]] = OffPolicyMaskBatch

    def terms(self, batch: OffPolicyMaskBatch, /) -> Terms:
        return self.filtered_terms(batch)

    def keep(self, batch: OffPolicyMaskBatch, /) -> Tensor:
        return self._keep(batch, "rollout_log_probs")


class ProximalOPSM(_OffPolicyMask):
    """OPSM with the divergence measured from the old policy: mean_m(old_log_probs - log_probs).

    Attributes: those of :class:`OPSM`.
    """

    name = "opsm_proximal"
    formula = "L = 0 if A < 0 and mean_m(l_old - l) > delta, else that of the filtered objective"
    paper = "arXiv:2512.02556"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--use-opsm, --opsm-delta",
        "slime": "--use-opsm, --opsm-delta",
        "TRL": "off_policy_mask_threshold, use_vllm=false",
    }
    reads: ClassVar[type[RolloutBatch]] = PolicyBatch

    def terms(self, batch: PolicyBatch, /) -> Terms:
        return self.filtered_terms(batch)

    def keep(self, batch: PolicyBatch, /) -> Tensor:
        return self._keep(batch, "old_log_probs")


class TopEntropy(Filtered):
    """Only the tokens of highest entropy train (arXiv:2506.01939): those at or above a quantile of the micro-batch.

    The quantile is taken over the trained tokens of the micro-batch, so a split changes the objective.

    Attributes:
        objective: whose tokens are filtered.
        fraction: the share of tokens that train; TRL's ``top_entropy_quantile``.
    """

    name = "top_entropy"
    formula = "L = 0 if H < the (1 - fraction) quantile of H, else that of the filtered objective"
    paper = "arXiv:2506.01939"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "top_entropy_quantile"}
    reads: ClassVar[type[RolloutBatch]] = EntropyMaskBatch
    batch_statistics = True

    fraction: float = Field(default=0.2, gt=0.0, le=1.0)

    def terms(self, batch: EntropyMaskBatch, /) -> Terms:
        return self.filtered_terms(batch)

    def keep(self, batch: EntropyMaskBatch, /) -> Tensor:
        return top_fraction(read(batch, "observed_entropy"), batch.loss_mask, self.fraction)
