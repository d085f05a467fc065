"""Ways to break the contract of a batch, one rule each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rollout_contract.layout import Layout
from rollout_contract.roles import Role
from rollout_contract.schema.plan import FieldSpec, Plan

Fields: TypeAlias = Mapping[str, Any]
Apply: TypeAlias = Callable[[FieldSpec, Fields, Fields], tuple[Fields, str]]
"""From a field, the fixed fields and all fields to arguments of the constructor and the name of the broken field."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """One way to break a rule.

    Attributes:
        rule: what the violation is called.
        applies: whether a field can be broken so.
        apply: does it.
    """

    rule: str
    applies: Callable[[FieldSpec], bool]
    apply: Apply

    def targets(self, plan: Plan) -> list[str]:
        """The fields of a schema that can be broken so."""
        specs = [spec for spec in plan.values() if spec.name not in ("loss_weights", "correction_weights")]
        return [spec.name for spec in specs if self.applies(spec)]


def _is_fixed(spec: FieldSpec) -> bool:
    return spec.role is Role.FIXED


def _is_required(spec: FieldSpec) -> bool:
    return spec.role is Role.FIXED and spec.required


def _is_fixed_float(spec: FieldSpec) -> bool:
    return _is_fixed(spec) and spec.family == "float"


def _is_per_token(spec: FieldSpec) -> bool:
    return _is_fixed(spec) and spec.axis == "tokens"


def _is_fixed_float_per_token(spec: FieldSpec) -> bool:
    return _is_fixed_float(spec) and _is_per_token(spec)


def _refuses_half(spec: FieldSpec) -> bool:
    return _is_fixed_float(spec) and not spec.upcast and "float16" not in spec.dtypes


def _is_mask(spec: FieldSpec) -> bool:
    return _is_fixed(spec) and spec.family == "bool"


def _has_one_device(spec: FieldSpec) -> bool:
    return _is_fixed_float(spec) and not spec.any_device


def _with(fixed: Fields, name: str, value: Any) -> tuple[Fields, str]:
    return {**fixed, name: value}, name


def _left_out(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    return {name: value for name, value in fixed.items() if name != spec.name}, spec.name


def _misspelt(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    wrong = f"{spec.name}_of_the_rollout"
    return {**fixed, wrong: fixed[spec.name]}, wrong


def _one_row_short(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    rows = Layout(fixed["response_lengths"]).split(fixed[spec.name])
    return _with(fixed, spec.name, [*rows[:-1], rows[-1][:-1]])


def _trailing_one(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    return _with(fixed, spec.name, fixed[spec.name].unsqueeze(-1))


def _in_half(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    return _with(fixed, spec.name, torch.nan_to_num(fixed[spec.name], 0.0, 0.0, 0.0).clamp(-9.0, 9.0).half())


def _weighted(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    mask = fixed[spec.name].float()
    mask[0] = 0.5
    return _with(fixed, spec.name, mask)


def _not_a_number(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    numbers = fixed[spec.name].clone()
    numbers[0] = float("nan")
    return _with(fixed, spec.name, numbers)


def _above_zero(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    numbers = fixed[spec.name].clone()
    numbers[0] = 1.5
    return _with(fixed, spec.name, numbers)


def _elsewhere(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    return _with(fixed, spec.name, fixed[spec.name].to("meta"))


def _live(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    with torch.enable_grad():
        return _with(fixed, spec.name, fixed[spec.name].clone().requires_grad_() * 1.0)


def _cut_off(spec: FieldSpec, fixed: Fields, everything: Fields) -> tuple[Fields, str]:
    others = {name: value for name, value in everything.items() if name not in fixed and name != spec.name}
    with torch.enable_grad():
        live = {name: value.clone().requires_grad_() * 1.0 for name, value in others.items()}
    return {**fixed, **live, spec.name: everything[spec.name].detach()}, spec.name


def _negative_length(spec: FieldSpec, fixed: Fields, _: Fields) -> tuple[Fields, str]:
    lengths = list(fixed[spec.name])
    return _with(fixed, spec.name, [-1, *lengths[1:]])


def _lengths(spec: FieldSpec) -> bool:
    return spec.name == "response_lengths"


def _breakages() -> Iterator[Breakage]:
    yield Breakage("missing", _is_required, _left_out)
    yield Breakage("unknown", _is_required, _misspelt)
    yield Breakage("length", _is_per_token, _one_row_short)
    yield Breakage("length", _lengths, _negative_length)
    yield Breakage("shape", _is_fixed, _trailing_one)
    yield Breakage("dtype", _refuses_half, _in_half)
    yield Breakage("mask", _is_mask, _weighted)
    yield Breakage("value", _is_fixed_float_per_token, _not_a_number)
    yield Breakage("value", lambda spec: _is_fixed(spec) and spec.holds_log_probs, _above_zero)
    yield Breakage("device", _has_one_device, _elsewhere)
    yield Breakage("live graph", _is_fixed_float, _live)
    yield Breakage("no graph", lambda spec: spec.role is Role.TRAINABLE, _cut_off)


BREAKAGES: tuple[Breakage, ...] = tuple(_breakages())
