"""The widest floating-point type that a device has."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def widened(values: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same numbers in the widest type."""
    return values.to(widest(values.device))
