"""Reads ``seeds.txt``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

KINDS = ("wrong axis", "missing expand", "sequence times token")


class Seed(NamedTuple):
    """In ``kernels/<module>.py``, ``old`` becomes ``new``."""

    module: str
    kind: str
    old: str
    new: str


def read_seeds() -> list[Seed]:
    """The seeds, in the order of the file."""
    _, *sections = (Path(__file__).parent / "seeds.txt").read_text().split("\n[")
    return [_seed(section) for section in sections]


def _seed(section: str) -> Seed:
    title, *lines = section.splitlines()
    module, kind = title.split("] ")
    old, new = ("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
    return Seed(module, kind, old, new)
