"""What may be added to a batch that exists, and what may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_contract.errors import Violation
from rollout_contract.schema.plan import Plan, describe
from rollout_contract.schema.state import State


def extension_violations(
    own: Plan, state: State, wider: Plan, names: tuple[str, str], fields: Mapping[str, Any]
) -> Iterator[Violation]:
    """Fields that a wider schema would lose or read in another way, and fields that are set already.

    ``names`` are those of the batch's schema and of the wider one.
    """
    hint = f"let {names[1]} inherit from {names[0]}, or from the schemas that it combines"
    for name in state.values:
        mine, theirs = own[name], wider.get(name)
        if theirs is None or theirs.signature() != mine.signature():
            found = f"no {name}" if theirs is None else describe(theirs)
            yield Violation(name, "schema", f"a schema that keeps {describe(mine)}", found, hint)
    hint = "fields are never replaced: build a new batch"
    for name in _set_twice(state, fields):
        yield Violation(name, "frozen", "a field that is not set yet", "a second value", hint)
    if "aggregation" in state.values and fields.get("group_ids") is not None:
        hint = "set the groups before weighted()"
        yield Violation("group_ids", "rows", "groups that the weights know", "weights made without them", hint)


def _set_twice(state: State, fields: Mapping[str, Any]) -> list[str]:
    again = [name for name in fields if name in state.values and name != "sampling"]
    new, known = fields.get("sampling"), state.values.get("sampling", {})
    return again + [f"sampling of {name}" for name in (new if isinstance(new, Mapping) else ()) if name in known]


def with_sampling(state: State, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sampling metadata comes with each field, and adds up."""
    new, known = fields.get("sampling"), state.values.get("sampling")
    if not isinstance(new, Mapping) or known is None:
        return fields
    return {**fields, "sampling": {**known, **new}}
