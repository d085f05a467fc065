"""TRL's padded inputs -> fields of a batch, and errors that name TRL's keys."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from rollout_contract.boundary import TRL
from rollout_contract.errors import ContractError, Violation
from rollout_contract.layout import Layout

LENGTHS = "response_lengths"
"""The key under which the trainer keeps the host's response lengths, next to TRL's own."""


def layout_of(inputs: Mapping[str, Any]) -> Layout:
    """Lengths of the completions: those that the host knew when it padded them, else (with one sync) of their mask."""
    mask: Tensor = inputs["completion_mask"]
    lengths: Sequence[int] = inputs.get(LENGTHS) or ()
    rows, width = mask.shape
    # Inputs of somebody who changed them afterwards may have other shapes.
    known = len(lengths) == rows and max(lengths, default=0) <= width
    return Layout(lengths if known else mask.sum(1).tolist())


def trained_tokens(inputs: Mapping[str, Any]) -> Tensor:
    """[batch, width] 1 on the tokens that the loss counts: of completions that are not masked out, and not a tool's."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def packed(name: str, values: Tensor, layout: Layout) -> Tensor:
    """[batch, width], or one value for each completion as [batch] or [batch, 1] -> [tokens]."""
    with _of_field(name):
        if values.dim() == 1:
            return layout.expand(values)
        if values.shape[1] == 1 and layout.max_length > 1:
            return layout.expand(values.squeeze(1))
        return layout.pack(values)


def lookup(inputs: Mapping[str, Any], field: str) -> Any:
    """What TRL has for a field; None for nothing."""
    key = TRL.key(field)
    return None if key is None else inputs.get(key.first)


def given(inputs: Mapping[str, Any], names: tuple[str, ...], layout: Layout) -> dict[str, Tensor]:
    """Those of the fields that TRL has a value for, packed."""
    present = {name: lookup(inputs, name) for name in names}
    return {name: packed(name, values, layout) for name, values in present.items() if values is not None}


@contextmanager
def _of_field(name: str) -> Generator[None]:
    """A layout knows no fields; what it finds wrong is wrong with this one."""
    try:
        yield
    except ContractError as error:
        raise type(error)(error.subject, [replace(wrong, field=name) for wrong in error.violations]) from None


@contextmanager
def naming_keys() -> Generator[None]:
    """Errors inside say where TRL has the field, besides its name in the contract."""
    try:
        yield
    except ContractError as error:
        raise type(error)("ContractGRPOTrainer", map(_with_key, error.violations)) from None


def _with_key(wrong: Violation) -> Violation:
    if wrong.field not in TRL.fields:
        return wrong
    return replace(wrong, found=f"{wrong.found} (key {TRL.key(wrong.field)} of TRL)")
