"""Synthetic input for a function, made from its annotations."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rollout_contract.check.batches import make_batch
from rollout_contract.check.dims import ArraySpec, Dims
from rollout_contract.check.maker import Maker
from rollout_contract.check.parameters import Parameter, flat
from rollout_contract.check.plain import plain_value
from rollout_contract.check.setup import Input, Setup
from rollout_contract.check.sizes import Sizes
from rollout_contract.layout import Layout
from rollout_contract.schema.batch import RolloutBatch


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything that a function is called with.

    Attributes:
        arguments: by parameter name, in the order of the signature.
        tensors: every tensor input, also the fields of batches, by name.
        mask: the tokens that train; None if there is no mask.
        unit: the dimension along which raw tensors are cut; None where they share none.
    """

    setup: Setup
    dims: Dims
    parameters: tuple[Parameter, ...]
    arguments: Mapping[str, Any]
    tensors: Mapping[str, Input]
    mask: Tensor | None
    unit: str | None

    @property
    def num_rows(self) -> int | None:
        """How many rows a cut can choose from; None if the input cannot be cut."""
        batches = [len(value) for value in self.arguments.values() if isinstance(value, RolloutBatch)]
        if batches:
            return batches[0]
        return None if self.unit is None else self.dims[self.unit]

    def take(self, rows: Sequence[int]) -> Inputs:
        """The same input with these rows, in this order."""
        arguments = {p.name: self._cut(p, self.arguments[p.name], rows) for p in self.parameters}
        return replace(self, arguments=arguments)

    def _cut(self, parameter: Parameter, value: Any, rows: Sequence[int]) -> Any:
        if parameter.members:
            parts = {member.name: self._cut(member, _member(value, member.name), rows) for member in parameter.members}
            return parameter.annotation(**parts)
        if isinstance(value, RolloutBatch | Layout):
            return value.select(rows)
        if isinstance(value, Tensor) and value.dim():
            return value.index_select(0, self._entries(self.tensors[parameter.name].dims[0], rows))
        return value

    def _entries(self, dim: str, rows: Sequence[int]) -> Tensor:
        """The entries of a dimension that belong to these rows: themselves, or beside a batch the samples' tokens."""
        if self.unit is not None or dim != "tokens":
            return torch.tensor(list(rows), dtype=torch.long)
        sample_ids = layout_of(self.setup.sizes).sample_ids()
        return torch.cat([(sample_ids == row).nonzero().flatten() for row in rows] or [sample_ids[:0]])

    def call_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        positional, keyword = [], {}
        for parameter in self.parameters:
            if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
                keyword[parameter.name] = self.arguments[parameter.name]
            else:
                positional.append(self.arguments[parameter.name])
        return positional, keyword


def make_inputs(parameters: tuple[Parameter, ...], setup: Setup) -> Inputs:
    """Input for these parameters.

    Raises:
        CannotCheckError: a value cannot be made up.
    """
    leaves = flat(parameters)
    shared = _shared_dims([p.spec.dims for p in leaves if p.spec is not None and p.spec.dims is not None])
    maker = Maker(setup, Dims(setup.sizes), _integer_bound(leaves, setup.sizes), shared, _mask_dims(leaves, shared))
    are_many = len([parameter for parameter in parameters if parameter.schema is not None]) > 1
    arguments = {parameter.name: _argument(maker, parameter, are_many) for parameter in parameters}
    unit = _unit([p.spec for p in leaves if p.spec is not None], any(p.schema for p in leaves))
    return Inputs(setup, maker.dims, parameters, arguments, maker.tensors, maker.mask, unit)


def _argument(maker: Maker, parameter: Parameter, are_many: bool) -> Any:
    if parameter.schema is not None:
        maker.prefix = f"{parameter.name}." if are_many else ""
        batch = make_batch(maker, parameter.schema)
        maker.prefix = ""
        return batch
    if parameter.spec is not None:
        return maker.raw_tensor(parameter.name, parameter.spec)
    if parameter.members:
        return parameter.annotation(**{member.name: _argument(maker, member, are_many) for member in parameter.members})
    return plain_value(parameter.name, parameter.annotation, maker.setup.sizes, maker.setup.device)


def _member(structure: Any, name: str) -> Any:
    return structure[name] if isinstance(structure, Mapping) else getattr(structure, name)


def _unit(specs: Sequence[ArraySpec], has_batch: bool) -> str | None:
    """The dimension that every raw tensor starts with: its entries are what a batch is made of."""
    first = {spec.dims[0] if spec.dims else None for spec in specs}
    unit = first.pop() if len(first) == 1 and not has_batch else None
    return unit if unit is not None and unit.isidentifier() else None


def _shared_dims(dims: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The longest common beginning; per token when there is none."""
    shared = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, zip(*dims, strict=False))]
    return tuple(shared) or ("tokens",)


def _mask_dims(parameters: Sequence[Parameter], shared: tuple[str, ...]) -> tuple[str, ...] | None:
    """The dimensions of the mask, or None when there is none."""
    if any(parameter.schema for parameter in parameters):
        return ("tokens",)
    masks = [p.spec for p in parameters if p.spec is not None and "mask" in p.name]
    return (shared if masks[0].dims is None else masks[0].dims) if masks else None


def _integer_bound(parameters: Sequence[Parameter], sizes: Sizes) -> int:
    dims = {dim for p in parameters if p.spec is not None for dim in p.spec.dims or ()}
    return sizes.named["vocab"] if "vocab" in dims or any(p.schema for p in parameters) else 2


def layout_of(sizes: Sizes) -> Layout:
    return Layout(sizes.response_lengths, prompt_lengths=sizes.prompt_lengths, group_ids=sizes.group_ids)
