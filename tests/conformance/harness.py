"""Reads conformance vectors: inputs, hyper-parameters, values and gradients that eleven trainers produced.

The directory of the vectors can be set by the environment variable ``CONFORMANCE_DIR``, so that vectors of the same
form, made from another batch with other lengths and hyper-parameters, run through the same tests.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollout_contract.layout import Layout

DIRECTORY = Path(os.environ.get("CONFORMANCE_DIR", Path(__file__).parent / "data"))


@cache
def batch_inputs() -> dict[str, Any]:
    """The shared batch: ``tensors``, ``lengths``, ``group_index``, ..."""
    found: dict[str, Any] = json.loads((DIRECTORY / "inputs.json").read_text())
    return found


@dataclass(frozen=True)
class Vector:
    """One record of one system."""

    system: str
    entry: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.entry["id"])

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.entry["params"]
        return found

    @property
    def roles(self) -> dict[str, str]:
        """Role -> name of the tensor in the shared batch."""
        found: dict[str, str] = self.entry["inputs"]
        return found

    def has(self, role: str) -> bool:
        return role in self.roles

    def tensor(self, role: str) -> Tensor:
        """The tensor of a role: float64, or int64 for token ids, labels, lengths and indices."""
        return tensor(self.roles[role])

    def check(self, value: Tensor, gradient: Tensor | None = None) -> None:
        """Compare a value, and its gradient with respect to ``wrt``, with the record at its own tolerance."""
        self._compare("value", value, self.entry["value"], self.entry["region"])
        if self.entry.get("grad") is not None:
            assert gradient is not None, f"{self.id}: the record has a gradient, the test gave none"
            self._compare("gradient", gradient, self.entry["grad"], "all")

    def _compare(self, what: str, found: Tensor, expected: Any, region: str) -> None:
        wanted = torch.tensor(expected, dtype=torch.float64)
        found = found.detach().to(torch.float64)
        assert found.shape == wanted.shape, f"{self.id}: {what} has shape {list(found.shape)}, not {list(wanted.shape)}"
        bound = self.entry["atol"] + self.entry["tolerance"] * wanted.abs()
        wrong = ~((found - wanted).abs() <= bound)
        if region == "length":
            wrong &= tensor("length_mask").bool()
        assert not wrong.any(), f"{self.id}: {what}\nfound\n{found}\nexpected\n{wanted}"


@cache
def _tensor(name: str) -> Tensor:
    values = batch_inputs()["tensors"][name]
    # Straight to float64: through float32 a value would lose half of its digits.
    found = torch.tensor(values, dtype=torch.float64)
    return found if torch.tensor(values).is_floating_point() else found.long()


def tensor(name: str) -> Tensor:
    """A fresh copy of a tensor of the shared batch."""
    return _tensor(name).clone()


def full_width_layout(like: Tensor, group_ids: Any = None) -> Layout:
    """A layout in which every column of a padded [batch, width] tensor counts as a response token."""
    groups = None if group_ids is None else [int(g) for g in group_ids]
    return Layout([like.shape[1]] * like.shape[0], group_ids=groups)


def vectors(*kinds: str) -> list[Vector]:
    """All records of these kinds, of every system."""
    found: list[Vector] = []
    for path in sorted(DIRECTORY.glob("*.json")):
        if path.name != "inputs.json":
            entries = json.loads(path.read_text())["entries"]
            found += [Vector(path.stem, entry) for entry in entries if entry["kind"] in kinds]
    return found
