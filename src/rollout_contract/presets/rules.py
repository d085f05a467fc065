"""A correction that several trainers have: weights that are 0 where a rejection rule would reject."""

from __future__ import annotations

from rollout_contract.corrections import Correction, CorrectionRule, Reject
from rollout_contract.errors import Violation, violation_error
from rollout_contract.schemas import TISBatch


class ZeroOutside(CorrectionRule):
    """The weights of another correction, with 0 in place of those that ``outside`` would reject.

    ``IcePop`` for whole sequences. The tokens stay in the mask: they count in the denominators, and in terms that take
    no importance weight, such as the KL.

    Attributes:
        rule: gives the weights.
        outside: says where they are 0.
    """

    rule: CorrectionRule
    outside: Reject

    def __call__(self, batch: TISBatch, /) -> Correction:
        found = self.rule(batch)
        if found.weights is None:
            missing = Violation("rule", "missing", "a correction with weights", f"{self.rule!r} gives none")
            raise violation_error("ZeroOutside", missing)
        weights = found.weights.where(~self.outside.rejected(batch), 0.0)
        return Correction(batch, weights=weights, mask=found.mask, metrics=found.metrics)
