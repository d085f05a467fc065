"""A correction is for the rows of the batch that it was made from."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.probe import Finding, Probe
from rollout_contract.corrections.correction import Correction
from rollout_contract.schema.batch import RolloutBatch

EXPLAINS = ("permutation",)


def find(probe: Probe) -> Iterator[Finding]:
    result = probe.first.result
    batches = [value for value in probe.first.inputs.arguments.values() if isinstance(value, RolloutBatch)]
    if not isinstance(result, Correction) or not batches:
        return
    given = {batch.row_ids for batch in batches}
    if result.row_ids not in given:
        found = f"one for rows {list(result.row_ids)}"
        hint = "pass the function's own batch to Correction(...), not a selection of it"
        yield Finding(probe.subject.place, f"a correction for rows {list(batches[0].row_ids)}", found, hint)
