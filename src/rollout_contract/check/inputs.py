"""Synthetic input for a function, made from its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from rollout_contract.check import values
from rollout_contract.check.dims import ArraySpec, Dims, Family
from rollout_contract.check.parameters import Parameter, plain_value
from rollout_contract.check.sizes import Sizes
from rollout_contract.layout import Layout
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch

Floats = Literal["float32", "float64", "mixed"]


@dataclass(frozen=True)
class Setup:
    """How input is made.

    Attributes:
        sizes: the shapes.
        floats: dtype of floating-point input. ``mixed``: float32 for trainable input, float64 for all other.
        secret: fixed input carries a graph.
        garbage: what lies at masked tokens; None for ordinary numbers.
        garbled: the inputs that get the garbage; empty for all.
        on_policy: all log-probs of one shape are equal.
        bound: whether trainable fields of a batch are bound.
        device: ``cuda`` is for fake tensors; nothing trainable carries a graph there.
    """

    sizes: Sizes
    floats: Floats = "float32"
    secret: bool = False
    garbage: float | None = None
    garbled: frozenset[str] = frozenset()
    on_policy: bool = False
    bound: bool = True
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True, eq=False)
class Input:
    """One tensor that a function gets.

    Attributes:
        name: of the field or parameter.
        role: fixed, trainable, or None where nothing is said.
        dims: the names of its dimensions.
        tensor: what the function gets.
        leaf: the leaf whose gradient tells whether a result depends on it; None if it carries no graph.
    """

    name: str
    role: Role | None
    dims: tuple[str, ...]
    tensor: Tensor
    leaf: Tensor | None = None


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
        arguments: dict[str, Any] = {}
        for parameter in self.parameters:
            value = self.arguments[parameter.name]
            if isinstance(value, RolloutBatch):
                value = value.select(rows)
            elif isinstance(value, Tensor) and value.dim():
                value = value.index_select(0, self._entries(self.tensors[parameter.name].dims[0], rows))
            elif isinstance(value, Layout):
                value = value.select(rows)
            arguments[parameter.name] = value
        return replace(self, arguments=arguments)

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
    maker = _Maker(setup, Dims(setup.sizes), _integer_bound(parameters, setup.sizes), _mask_dims(parameters))
    arguments = {parameter.name: maker.argument(parameter) for parameter in parameters}
    unit = _unit([p.spec for p in parameters if p.spec is not None], any(p.schema for p in parameters))
    return Inputs(setup, maker.dims, parameters, arguments, maker.tensors, maker.mask, unit)


def _unit(specs: Sequence[ArraySpec], has_batch: bool) -> str | None:
    """The dimension that every raw tensor starts with: its entries are what a batch is made of."""
    first = {spec.dims[0] if spec.dims else None for spec in specs}
    unit = first.pop() if len(first) == 1 and not has_batch else None
    return unit if unit is not None and unit.isidentifier() else None


def _mask_dims(parameters: Sequence[Parameter]) -> tuple[str, ...] | None:
    """The dimensions of the mask, or None when there is none."""
    if any(parameter.schema for parameter in parameters):
        return ("tokens",)
    masks = [p.spec for p in parameters if p.spec is not None and "mask" in p.name]
    return (masks[0].dims or ("tokens",)) if masks else None


def _integer_bound(parameters: Sequence[Parameter], sizes: Sizes) -> int:
    dims = {dim for p in parameters if p.spec is not None for dim in p.spec.dims or ()}
    return sizes.named["vocab"] if "vocab" in dims or any(p.schema for p in parameters) else 2


@dataclass
class _Maker:
    setup: Setup
    dims: Dims
    integers_below: int
    mask_dims: tuple[str, ...] | None
    tensors: dict[str, Input] = field(default_factory=dict)
    mask: Tensor | None = None

    def argument(self, parameter: Parameter) -> Any:
        if parameter.schema is not None:
            from rollout_contract.check.batches import make_batch

            return make_batch(self, parameter.schema)
        if parameter.spec is not None:
            return self.raw_tensor(parameter.name, parameter.spec)
        return plain_value(parameter, self.setup.sizes)

    def raw_tensor(self, name: str, spec: ArraySpec) -> Tensor:
        """A tensor parameter. One that says no dimensions is taken to be per token, as those beside it are."""
        dims = ("tokens",) if spec.dims is None else spec.dims
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
        if garbage is None or mask_dims is None or (garbled and name not in garbled) or "mask" in name:
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
        found = live_input(name, role, tuple(dims), tensor) if self._is_live(role, tensor) else None
        found = found or Input(name, role, tuple(dims), tensor)
        self.tensors[name] = found
        return found

    def _is_live(self, role: Role | None, tensor: Tensor) -> bool:
        if not tensor.is_floating_point() or self.setup.device == "cuda":
            return False
        return role is Role.TRAINABLE or (role is Role.FIXED and self.setup.secret)


def live_input(name: str, role: Role | None, dims: tuple[str, ...], tensor: Tensor) -> Input:
    """The tensor as a non-leaf: an in-place edit of it is then possible, and can be found."""
    leaf = tensor.detach().clone().requires_grad_()
    return Input(name, role, dims, leaf.clone(), leaf)


def _dtype(allowed: Sequence[str], wanted: str) -> torch.dtype:
    """The wanted dtype if the annotation allows it, else the widest that it allows."""
    known = [name for name in allowed if isinstance(getattr(torch, name, None), torch.dtype)]
    found: torch.dtype = getattr(torch, wanted if not allowed or wanted in allowed else known[-1])
    return found


def layout_of(sizes: Sizes) -> Layout:
    return Layout(sizes.response_lengths, prompt_lengths=sizes.prompt_lengths, group_ids=sizes.group_ids)
