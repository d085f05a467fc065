"""The rules, in the order in which they are looked at. One file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import (
    broadcast,
    device,
    dtype,
    edge_shape,
    finite,
    half_precision,
    hard_coded_size,
    in_place,
    live_input,
    live_output,
    masked,
    metric_graph,
    missing_field,
    permutation,
    raises,
    role,
    rows,
    shape,
    split,
    unreached,
)
from rollout_contract.check.subjects import SchemaSubject

FindInFunction = Callable[[Probe], Iterator[Finding]]
FindInSchema = Callable[[SchemaSubject], Iterator[Finding]]


def _nothing(_: Any) -> Iterator[Finding]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: for ``--only`` and ``--ignore``.
        summary: what holds for code that obeys it, in one sentence.
        find: from a function to what breaks the rule there.
        find_in_schema: from a schema to what breaks the rule there.
        explains: rules whose findings for the same function are consequences of this one's, and are not reported.
    """

    name: str
    summary: str
    find: FindInFunction
    find_in_schema: FindInSchema
    explains: tuple[str, ...]


def _rule(module: ModuleType) -> Rule:
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    summary = " ".join((module.__doc__ or "").split())
    in_function, in_schema = getattr(module, "find", _nothing), getattr(module, "find_in_schema", _nothing)
    return Rule(name, summary, in_function, in_schema, getattr(module, "EXPLAINS", ()))


_MODULES = (
    role,
    raises,
    missing_field,
    hard_coded_size,
    broadcast,
    shape,
    dtype,
    half_precision,
    finite,
    edge_shape,
    live_input,
    live_output,
    unreached,
    metric_graph,
    in_place,
    masked,
    split,
    rows,
    permutation,
    device,
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in map(_rule, _MODULES)})
"""Every rule by its name. ``schema`` is not here: a schema that is no schema is found when it is imported."""

SCHEMA_RULE = "schema"
RULE_NAMES = (SCHEMA_RULE, *RULES)
SUMMARIES: Mapping[str, str] = MappingProxyType(
    {SCHEMA_RULE: "A schema compiles: every field has one role and a shape."}
    | {name: rule.summary for name, rule in RULES.items()}
)
