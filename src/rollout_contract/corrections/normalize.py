"""Weights whose mean over the step is 1, so that a correction does not change the size of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rollout_contract.corrections.correction import Correction
from rollout_contract.corrections.rule import AnyRule, CorrectionRule
from rollout_contract.errors import Violation, violation_error
from rollout_contract.mismatch import samples_with
from rollout_contract.schemas import TISBatch


class Normalize(CorrectionRule):
    """The weights of another correction divided by their mean, after its truncation; self-normalised sampling.

    The mean is a statistic of the whole step, so call it before the step is split, with the data-parallel group if
    there are several ranks. Weights that are all 0 stay 0.

    Attributes:
        rule: the correction whose weights are normalised; it must give some.
        per: the mean is over trained ``token``s, or over the means of each ``sequence`` that has any.
    """

    name = "normalize"
    formula = "w = w' / mean of w' over the step, after its truncation"
    paper = "https://verl.readthedocs.io/en/latest/algo/rollout_corr.html"
    known_as: ClassVar[Mapping[str, str]] = {
        "verl": "rollout_is=token | sequence, rollout_is_batch_normalize=true",
        "miles": "--use-tis, --custom-tis-function-path compute_mis_weights_with_cp, tis_batch_normalize=true",
        "slime": "--use-tis, --custom-tis-function-path compute_mis_weights_with_cp, tis_batch_normalize=true",
    }

    rule: AnyRule
    per: Literal["token", "sequence"] = "token"

    def __call__(self, batch: TISBatch, /, *, group: ProcessGroup | None = None) -> Correction:
        found = self.rule(batch)
        if found.weights is None:
            hint = "put the rule that gives weights, such as Truncate, inside Normalize"
            missing = Violation("rule", "missing", "a correction with weights", f"{self.rule!r} gives none", hint)
            raise violation_error("Normalize", missing)
        mean = self._mean(batch, found.weights, group)
        weights = found.weights / mean.where(mean > 0, 1.0).to(found.weights.dtype)
        return Correction(batch, weights=weights, mask=found.mask, metrics=found.metrics)

    def _mean(self, batch: TISBatch, weights: Tensor, group: ProcessGroup | None) -> Tensor:
        mask: Tensor = batch.loss_mask
        present = mask
        if self.per == "sequence":
            present = samples_with(batch, mask)
            weights = batch.layout.mean(weights, mask)
        sums = torch.stack([weights.where(present, 0.0).sum(), present.sum().to(weights.dtype)])
        if group is not None:
            torch.distributed.all_reduce(sums, group=group)
        total, count = sums.unbind()
        return total / count.clamp(min=1)
