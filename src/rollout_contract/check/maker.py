"""Making tensors: numbers that fit their name, garbage at masked tokens, graphs where there shall be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rollout_contract.check import values
from rollout_contract.check.dims import ArraySpec, Dims, Family
from rollout_contract.check.setup import Input, Setup, live_input
from rollout_contract.roles import Role


@dataclass
class Maker:
    """Makes tensors for one setup, and notes them.

    Attributes:
        prefix: of the names of noted inputs, where several batches have fields of one name.
        shared_dims: the first dimensions of every tensor that names some.
        mask_dims: the dimensions of the mask; None when there is none.
    """

    setup: Setup
    dims: Dims
    integers_below: int
    shared_dims: tuple[str, ...]
    mask_dims: tuple[str, ...] | None
    tensors: dict[str, Input] = field(default_factory=dict)
    mask: Tensor | None = None
    prefix: str = ""

    def raw_tensor(self, name: str, spec: ArraySpec) -> Tensor:
        """A tensor parameter. One that says no dimensions has those that all beside it share."""
        dims = self.shared_dims if spec.dims is None else spec.dims
        shape = self.dims.shape(dims)
        family: Family = "bool" if "mask" in name and spec.dims is None else spec.family
        numbers = self.numbers(name, dims, shape, family, spec.dtypes, spec.role)
        if "mask" in name:
            numbers = self.mask_numbers(shape).to(numbers.dtype)
            self.mask = numbers.bool()
        return self.remember(name, spec.role, dims, self.placed(numbers, spec.any_device)).tensor

    def mask_numbers(self, shape: Sequence[int]) -> Tensor:
        return values.mask(shape, self.setup.sizes)

    def placed(self, numbers: Tensor, any_device: bool) -> Tensor:
        """The tensor itself, or a fake one of its shape: on the GPU, if it has to lie where the batch lies."""
        if self.setup.device == "cpu":
            return numbers
        return torch.empty_like(numbers, device="cpu" if any_device else "cuda")

    def numbers(
        self, name: str, dims: Sequence[str], shape: Sequence[int], family: str, dtypes: Sequence[str], role: Any
    ) -> Tensor:
        """Numbers of the right family and dtype, with garbage at masked tokens if the setup says so."""
        if family == "bool":
            return self._garble(name, dims, values.booleans(name, shape))
        if family == "int":
            found = values.integers(name, shape, self.setup.sizes, self.integers_below)
            return self._garble(name, dims, found.to(_dtype(dtypes, "int64")))
        wanted = self.setup.floats
        if wanted == "mixed":
            wanted = "float32" if role is Role.TRAINABLE else "float64"
        return self._garble(name, dims, values.floats(name, shape, self.setup.on_policy).to(_dtype(dtypes, wanted)))

    def _garble(self, name: str, dims: Sequence[str], numbers: Tensor) -> Tensor:
        garbage, garbled, mask_dims = self.setup.garbage, self.setup.garbled, self.mask_dims
        if garbage is None or mask_dims is None or (garbled and self.prefix + name not in garbled) or "mask" in name:
            return numbers
        if not mask_dims or tuple(dims[: len(mask_dims)]) != mask_dims:
            return numbers
        where = ~values.mask(numbers.shape[: len(mask_dims)], self.setup.sizes)
        where = where.reshape(*where.shape, *(1,) * (numbers.dim() - where.dim()))
        if numbers.dtype == torch.bool:
            return numbers ^ where
        if not numbers.is_floating_point():
            return torch.where(where & (numbers > 0), numbers - 1, numbers)
        return numbers.masked_fill(where, garbage)

    def remember(self, name: str, role: Role | None, dims: Sequence[str], tensor: Tensor) -> Input:
        """Give a tensor a graph where it shall have one, and note it."""
        full, dims = self.prefix + name, tuple(dims)
        is_live = self._is_live(role, tensor)
        found = live_input(full, role, dims, tensor) if is_live else Input(full, role, dims, tensor)
        self.tensors[full] = found
        return found

    def _is_live(self, role: Role | None, tensor: Tensor) -> bool:
        if not tensor.is_floating_point() or self.setup.device == "cuda":
            return False
        return role is Role.TRAINABLE or (role is Role.FIXED and self.setup.secret)


def _dtype(allowed: Sequence[str], wanted: str) -> torch.dtype:
    """The wanted dtype if the annotation allows it, else the widest that it allows."""
    known = [name for name in allowed if isinstance(getattr(torch, name, None), torch.dtype)]
    found: torch.dtype = getattr(torch, wanted if not allowed or wanted in allowed else known[-1])
    return found
