"""Taking tokens out of the mask of a batch that may have its loss weights already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from rollout_contract.aggregation import step_weights
from rollout_contract.errors import Violation
from rollout_contract.layout import Layout


def narrowed(values: Mapping[str, Any], layout: Layout, keep: Tensor) -> dict[str, Any]:
    """The mask without the tokens outside ``keep``, and the loss weights (if there are some) computed anew."""
    mask: Tensor = values["loss_mask"] & keep
    if "loss_weights" not in values:
        return {"loss_mask": mask}
    weights = step_weights(layout, mask, values["aggregation"], row_ids=values["row_ids"])
    return {"loss_mask": mask, "loss_weights": weights}


def narrowing_violations(values: Mapping[str, Any], is_part: bool) -> Iterator[Violation]:
    """Loss weights that cannot be computed anew, because this batch does not hold the counts of the whole step."""
    aggregation = values.get("aggregation")
    if "loss_weights" in values and (is_part or aggregation is None or not aggregation.is_local):
        found = "weights of the loss that were computed before, from counts that this batch does not hold"
        hint = "take tokens out (by a correction, or as missing) before weighted() and split()"
        yield Violation("loss_weights", "correction", "no weights of the loss yet", found, hint)
