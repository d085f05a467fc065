"""Runs what the README prints: its example, and each mistake against the error text below it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

README = Path(__file__).parent.parent / "README.md"


class Block(NamedTuple):
    """A fenced block of the README."""

    language: str
    text: str


def blocks() -> list[Block]:
    """All fenced blocks, in order."""
    return [Block(*found) for found in re.findall(r"```(python|text)\n(.*?)```", README.read_text(), re.DOTALL)]


def run_example() -> dict[str, Any]:
    """Execute the first block as printed, and return its names."""
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(blocks()[0].text, "README.md", "exec", dont_inherit=True), names)
    return names


if __name__ == "__main__":
    example = run_example()
    print("the README's example ran:", example["loss"])
