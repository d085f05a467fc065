"""The report as text: one block for each fault, in the form of the library's own errors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from rollout_contract.check.findings import Fault, Report, Unchecked
from rollout_contract.check.report.paths import relative, shown, source_line


class Span(NamedTuple):
    """Text in one style: file, line, rule, subject, code, label, bad, unsure, good, or none."""

    text: str
    style: str = ""


Line = list[Span]

_INDENT = 8
_LABEL = 10


def as_text(report: Report) -> str:
    """Without colour, 100 columns wide."""
    lines = ("".join(span.text for span in line).rstrip() for line in text_lines(report, 100))
    return "\n".join(lines) + "\n"


def text_lines(report: Report, width: int) -> Iterator[Line]:
    """The lines of the report, with a style for each piece."""
    for file, faults in groupby(report.faults, key=lambda fault: fault.place.file):
        yield [Span(relative(file) if file else "(no source)", "file")]
        for place, here in groupby(faults, key=lambda fault: fault.place):
            code = source_line(place)
            room = width - _INDENT
            yield [
                Span(f"{place.line:>6}  ", "line"),
                Span(code if len(code) <= room else f"{code[: room - 3]}...", "code"),
            ]
            for fault in here:
                yield from _fault(fault, width)
    if report.unchecked:
        yield [Span("not checked", "unsure")]
        for item in report.unchecked:
            yield from _unchecked(item, width)
    yield from _summary(report)


def _fault(fault: Fault, width: int) -> Iterator[Line]:
    name = fault.subject.rpartition(":")[2]
    yield [Span(" " * _INDENT), Span(fault.rule, "rule"), Span(f"  in {name}", "subject")]
    for label, text in (("expected", fault.expected), ("found", fault.found), ("repair", fault.hint)):
        if text:
            yield from _labelled(label, text, width)
    yield []


def _labelled(label: str, text: str, width: int) -> Iterator[Line]:
    head = f"{label:<{_LABEL}}"
    for number, piece in enumerate(textwrap.wrap(text, max(width - _INDENT - _LABEL, 30)) or [""]):
        yield [Span(" " * _INDENT), Span(head if number == 0 else " " * _LABEL, "label"), Span(piece)]


def _unchecked(item: Unchecked, width: int) -> Iterator[Line]:
    place = shown(item.place)
    yield [Span(" " * 2), Span(item.subject, "subject"), Span(f"  {place}" if place else "", "line")]
    for piece in textwrap.wrap(item.reason, max(width - _INDENT, 30)):
        yield [Span(" " * _INDENT + piece)]
    yield []


def _summary(report: Report) -> Iterator[Line]:
    checked = _count(len(report.checked), "function or schema", "functions and schemas")
    seconds = f"{report.seconds:.1f} s"
    if not report.faults and not report.unchecked:
        yield [Span("no faults", "good"), Span(f" in {checked}, {seconds}")]
        return
    bad = len({fault.subject for fault in report.faults})
    line = [Span(_count(len(report.faults), "fault", "faults"), "bad") if report.faults else Span("no faults")]
    line.append(Span(f" in {bad} of {checked}" if report.faults else f" in {checked}"))
    if report.unchecked:
        line.append(Span(", "))
        line.append(Span(_count(len(report.unchecked), "thing", "things") + " not checked", "unsure"))
    yield [*line, Span(f", {seconds}")]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
