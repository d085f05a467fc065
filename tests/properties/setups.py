"""From plain numbers to batches of the library: whatever fields a schema has, today's and tomorrow's."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schema.plan import FieldSpec
from tests.properties.batches import Case

BatchT = TypeVar("BatchT", bound=RolloutBatch)

MADE_BY_THE_BATCH = ("loss_mask", "loss_weights", "correction_weights")
WIDTHS = {"topk": 3, "teachers": 2, "vocab": 5, "components": 2}
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Setup:
    """What a batch of a schema is made of.

    Attributes:
        fixed: constructor arguments, by field.
        bound: what ``bind`` gets after the build.
    """

    schema: type[RolloutBatch]
    lengths: list[int]
    mask: Tensor
    group_ids: list[int]
    fixed: Tensors
    bound: Tensors

    def build(self) -> Any:
        host = {"response_lengths": self.lengths, "group_ids": self.group_ids, "loss_mask": self.mask}
        return self.schema(**host, **self.fixed)

    def spec(self, name: str) -> FieldSpec:
        return self.schema.__plan__[name]

    def live(self) -> Tensors:
        """Fresh leaves for the fields that a loss trains, and the others that are bound late as they are."""
        return {
            name: tensor.detach().clone().requires_grad_() if self.spec(name).role is Role.TRAINABLE else tensor
            for name, tensor in self.bound.items()
        }

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Setup:
        fixed = {name: change(name, tensor) for name, tensor in self.fixed.items()}
        return replace(self, fixed=fixed, bound={name: change(name, tensor) for name, tensor in self.bound.items()})

    def poisoned(self, value: float) -> Setup:
        """With ``value`` at every masked place of every per-token field of floats."""

        def poison(name: str, tensor: Tensor) -> Tensor:
            if self.spec(name).axis != "tokens" or not tensor.is_floating_point():
                return tensor
            mask = self.mask.reshape(-1, *[1] * (tensor.dim() - 1))
            return torch.where(mask, tensor, value)

        return self.map(poison)

    def permuted(self, order: Sequence[int]) -> Setup:
        """The samples in another order."""
        cut = self.map(lambda name, tensor: self.reorder(tensor, order, self.spec(name).axis))
        mask = self.reorder(self.mask, order, "tokens")
        rows = {"lengths": [self.lengths[i] for i in order], "group_ids": [self.group_ids[i] for i in order]}
        return replace(cut, mask=mask, **rows)

    def reorder(self, tensor: Tensor, order: Sequence[int], axis: str = "tokens") -> Tensor:
        if axis == "batch":
            return tensor[list(order)]
        parts = tensor.split(self.lengths)
        return torch.cat([parts[i] for i in order]) if order else tensor


def setup(schema: type[RolloutBatch], case: Case, dtype: torch.dtype = torch.float64) -> Setup:
    """Numbers of the case where it has a field of that name, else numbers of the right shape."""
    mask = torch.tensor([m for row in case.mask for m in row], dtype=torch.bool)
    names = [n for n, spec in schema.__plan__.items() if spec.is_tensor and n not in MADE_BY_THE_BATCH]
    tensors = {name: _tensor(schema.__plan__[name], case, dtype) for name in names}
    fixed = {name: tensor for name, tensor in tensors.items() if schema.__plan__[name].required}
    bound = {name: tensor for name, tensor in tensors.items() if name not in fixed}
    return Setup(schema, case.lengths, mask, case.group_ids, fixed, bound)


def build(schema: type[BatchT], case: Case, dtype: torch.dtype = torch.float64) -> BatchT:
    batch: BatchT = setup(schema, case, dtype).build()
    return batch


def _tensor(spec: FieldSpec, case: Case, dtype: torch.dtype) -> Tensor:
    if spec.name in case.tokens:
        return case.packed(spec.name, dtype)
    if spec.name in case.samples:
        return torch.tensor(case.samples[spec.name], dtype=dtype)
    sizes = {"tokens": sum(case.lengths), "batch": len(case.lengths), "groups": len(set(case.group_ids)), **WIDTHS}
    shape = [sizes[str(dim)] for dim in spec.dims]
    generator = torch.Generator().manual_seed(zlib.crc32(spec.name.encode()))
    if spec.family == "bool":
        return torch.rand(shape, generator=generator) < 0.7
    if spec.family == "int":
        return torch.arange(shape[-1] if shape else 1).expand(shape).clone()
    numbers = torch.randn([*shape[:-1], 2 * shape[-1]], generator=generator, dtype=torch.float64)
    if spec.holds_log_probs:  # some of the outcomes of a distribution
        numbers = numbers.log_softmax(-1)
    elif spec.name.endswith("weights"):
        numbers = numbers.softmax(-1)
    return numbers[..., : shape[-1]].to(dtype)
