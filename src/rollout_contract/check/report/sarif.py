"""The report as SARIF 2.1.0, which code scanning services read."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rollout_contract.check.findings import Fault, Place, Report, Unchecked
from rollout_contract.check.report.paths import relative


def as_sarif(report: Report) -> str:
    """One run; what could not be checked is a notification of it."""
    notes = [
        {"level": "warning", "message": {"text": f"{item.subject}: {item.reason}"}, "locations": _locations(item.place)}
        for item in report.unchecked
    ]
    run = {
        "tool": {"driver": {"name": "rollout-contract", "version": _version(), "rules": _rules()}},
        "results": [_result(fault) for fault in report.faults],
        "invocations": [{"executionSuccessful": not report.unchecked, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rules() -> list[dict[str, Any]]:
    from rollout_contract.check.rules import SUMMARIES

    return [{"id": name, "shortDescription": {"text": summary}} for name, summary in SUMMARIES.items()]


def _result(fault: Fault) -> dict[str, Any]:
    return {
        "ruleId": fault.rule,
        "level": "error",
        "message": {"text": message(fault)},
        "locations": _locations(fault.place),
    }


def message(item: Fault | Unchecked) -> str:
    """All facts in a few lines of plain text."""
    if isinstance(item, Unchecked):
        return f"{item.subject} was not checked: {item.reason}"
    repair = f"\nrepair: {item.hint}" if item.hint else ""
    return f"{item.subject}\nexpected: {item.expected}\nfound: {item.found}{repair}"


def _locations(place: Place) -> list[dict[str, Any]]:
    if not place.file:
        return []
    path = relative(place.file)
    uri = Path(path).as_uri() if Path(path).is_absolute() else path
    region = {"region": {"startLine": place.line}} if place.line else {}
    return [{"physicalLocation": {"artifactLocation": {"uri": uri}, **region}}]


def _version() -> str:
    try:
        return version("rollout-contract")
    except PackageNotFoundError:
        return "unknown"
