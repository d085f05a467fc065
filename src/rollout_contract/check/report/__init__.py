"""Reports: readable text, JSON, SARIF for code scanning, and GitHub's workflow commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rollout_contract.check.findings import Report
from rollout_contract.check.report.as_json import as_json
from rollout_contract.check.report.github import as_github
from rollout_contract.check.report.sarif import as_sarif
from rollout_contract.check.report.text import as_text

FORMATS: Mapping[str, Callable[[Report], str]] = MappingProxyType(
    {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}
)
"""What ``--format`` can name."""
