"""Paths as a reader, or a tool in the root of a repository, wants them."""

from __future__ import annotations

import linecache
from pathlib import Path

from rollout_contract.check.findings import Place


def relative(file: str) -> str:
    """Relative to the working directory if it lies below, else absolute; with forward slashes."""
    path = Path(file)
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def shown(place: Place) -> str:
    """``file:line``, or nothing when there is no source."""
    return f"{relative(place.file)}:{place.line}" if place.file else ""


def source_line(place: Place) -> str:
    """The text of the line, without indentation."""
    return linecache.getline(place.file, place.line).strip()
