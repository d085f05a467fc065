"""The report as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rollout_contract.check.findings import Fault, Report, Unchecked
from rollout_contract.check.report.paths import relative


def as_json(report: Report) -> str:
    """An object with ``version``, ``exit_code``, ``faults``, ``unchecked``, ``checked`` and ``seconds``."""
    content = {
        "version": 1,
        "exit_code": report.exit_code,
        "faults": [_flat(fault) for fault in report.faults],
        "unchecked": [_flat(item) for item in report.unchecked],
        "checked": list(report.checked),
        "seconds": round(report.seconds, 3),
    }
    return json.dumps(content, indent=2) + "\n"


def _flat(item: Fault | Unchecked) -> dict[str, Any]:
    fields = asdict(item)
    place = fields.pop("place")
    return {"file": relative(place["file"]) if place["file"] else "", "line": place["line"], **fields}
