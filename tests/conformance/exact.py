"""Records whose floating-point inputs are read as float64, without a detour through float32."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.conformance.harness import Vector, batch_inputs, vectors


class ExactVector(Vector):
    """A record of a system that computed in float64."""

    def tensor(self, role: str) -> Tensor:
        values = batch_inputs()["tensors"][self.roles[role]]
        found = torch.tensor(values)
        return torch.tensor(values, dtype=torch.float64) if found.is_floating_point() else found


def exact_vectors(kind: str) -> list[Vector]:
    """All records of this kind, of every system."""
    return [ExactVector(vector.system, vector.entry) for vector in vectors(kind)]
