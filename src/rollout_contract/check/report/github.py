"""The report as workflow commands, which GitHub shows at the lines of a pull request."""

from __future__ import annotations

from rollout_contract.check.findings import Fault, Place, Report, Unchecked
from rollout_contract.check.report.paths import relative
from rollout_contract.check.report.sarif import message


def as_github(report: Report) -> str:
    """One line for each fault (an error) and for each thing that could not be checked (a warning)."""
    lines = [_command("error", fault.place, fault.rule, fault) for fault in report.faults]
    lines += [_command("warning", item.place, "not checked", item) for item in report.unchecked]
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, place: Place, title: str, item: Fault | Unchecked) -> str:
    where = f"file={_property(relative(place.file))},line={place.line}," if place.file else ""
    return f"::{level} {where}title={_property(f'rollout-contract {title}')}::{_data(message(item))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
