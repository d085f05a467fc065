"""A correction that several trainers have: weights that are 0 where a rejection rule would reject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import SerializeAsAny

from rollout_contract.corrections import Correction, CorrectionRule, Reject
from rollout_contract.losses.inputs import read
from rollout_contract.schemas import TISBatch


class ZeroOutside(CorrectionRule):
    """The weights of another correction, with 0 in place of those that ``outside`` would reject.

    ``IcePop`` for whole sequences. The tokens stay in the mask: they count in the denominators, and in terms that take
    no importance weight, such as the KL.

    Attributes:
        rule: gives the weights; None for 1 everywhere.
        outside: says where they are 0.

    Metrics: those of both.
    """

    name = "zero_outside"
    formula = "w = 0 where `outside` would reject, else that of the other rule"
    paper = "https://github.com/OpenRLHF/OpenRLHF"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "rollout_is=sequence, rollout_is_threshold=0.5_5.0",
        "TRL": "vllm_importance_sampling_mode=sequence_mask, use_vllm=true",
        "OpenRLHF": "--enable_vllm_is_correction, --vllm_is_correction_type seq-mask-tis",
        "NeMo-RL": "truncated_importance_sampling_type=seq-mask-tis",
        "SkyRL": "sequence_mask_metric=product | geometric",
    }

    rule: SerializeAsAny[CorrectionRule] | None
    outside: Reject

    def __call__(self, batch: TISBatch, /) -> Correction:
        judged = self.outside(batch)
        found = judged if self.rule is None else self.rule(batch) & judged
        kept = batch.loss_mask if found.mask is None else found.mask
        weights = kept.to(read(batch, "old_log_probs").dtype) if found.weights is None else found.weights
        return Correction(batch, weights=weights.where(kept, 0.0), metrics=found.metrics)
