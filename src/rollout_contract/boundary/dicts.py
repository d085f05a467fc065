"""The boundary for a trainer that keeps its dict: one line after scoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from rollout_contract.boundary.containers import as_tensor, carries_graph, freed, product
from rollout_contract.boundary.names import PLAIN, Key, Names
from rollout_contract.boundary.rows import Rows
from rollout_contract.errors import ContractError, Violation, raise_violations
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch

BatchT = TypeVar("BatchT", bound=RolloutBatch)


@runtime_checkable
class TrainerDict(Protocol):
    """A dict, or what can be used like one: a TensorDict, ``vars(something)``."""

    def keys(self) -> Any: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __setitem__(self, key: str, value: Any, /) -> None: ...


def guard(data: TrainerDict, schema: type[BatchT], names: Names = PLAIN, /, **fields: Any) -> BatchT:
    """Validate a trainer's dict by a schema, and put what is fit for a loss back under the same keys.

        batch = guard(rollout_data, PersistedBatch, MILES)

    Of every fixed field of the schema that the dict has, a live graph is cut (or refused, see ``settings``). Containers
    keep their type, and what was right stays the very same object. Keys that the schema does not know are left alone.
    A key that is absent, or None, is a missing field: an error if the schema requires it, else nothing. If anything is
    wrong the dict is left as it was.

    Args:
        data: lists with one row per sample, padded tensors or packed ones; see ``names``.
        schema: its fixed fields are taken from the dict, and its trainable ones if they are there and live.
        names: where the trainer keeps the fields.
        fields: by the names of the schema, what the dict does not have, or has in another form; not put back. With
            ``response_lengths``, padded rows are cut to these lengths; without, what is padding is a masked token.

    Returns:
        The validated batch. Where the dict's tensors could be taken as they are, it shares their memory.

    Raises:
        ContractError: with every violation, and the key of each field.
    """
    return admit(data, schema, names, fields, must_be_live=False)


def admit(
    data: TrainerDict, schema: type[BatchT], names: Names, fields: Mapping[str, Any], *, must_be_live: bool
) -> BatchT:
    """As :func:`guard`; with ``must_be_live``, a trainable field of the dict without a graph is an error."""
    present = {key: data[key] for key in list(data.keys()) if data[key] is not None}
    mask = fields["loss_mask"] if "loss_mask" in fields else _value(present, names.key("loss_mask"))
    try:
        rows = Rows.of(names, present, fields.get("response_lengths"), mask)
        given: dict[str, Any] = {**fields, **_packed(schema, rows, present, fields, must_be_live)}
        given["response_lengths"] = rows.layout.response_lengths
        batch = schema(**given)
    except ContractError as error:
        raise_violations(schema.__name__, [_with_key(names, wrong) for wrong in error.violations])
        raise
    for key, value in _cleaned(batch, rows, present):
        data[key] = value
    return batch


def _value(present: Mapping[str, Any], key: Key | None) -> Any:
    """What lies under a key; of several, their product."""
    if key is None or key.first not in present:
        return None
    return product([as_tensor(present[part]) for part in key.keys if part in present])


def _packed(
    schema: type[RolloutBatch], rows: Rows, present: Mapping[str, Any], fields: Mapping[str, Any], must_be_live: bool
) -> dict[str, Any]:
    """The fields, as the constructor of the schema takes them."""
    found: dict[str, Any] = {"prompt_lengths": rows.prompt_lengths(present)}
    violations: list[Violation] = []
    for name, spec in schema.__plan__.items():
        key = rows.names.key(name)
        value = fields[name] if name in fields else _value(present, key)
        unbound = spec.role is Role.TRAINABLE and not must_be_live and not carries_graph(value)
        if value is None or unbound or name == "response_lengths":
            continue
        try:
            found[name] = rows.pack(spec, key or Key(name), value)
        except ContractError as error:
            violations += [replace(wrong, field=name) for wrong in error.violations]
    raise_violations(schema.__name__, violations)
    return found


def _cleaned(batch: RolloutBatch, rows: Rows, present: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What has to be put back into the dict, by key."""
    filled = _filled(batch)
    for name, spec in type(batch).__plan__.items():
        key = rows.names.key(name)
        if spec.role is not Role.FIXED or key is None or key.first not in present:
            continue
        for part in key.keys:
            if part in present and (new := freed(spec, present[part])) is not present[part]:
                yield part, new
        if name in filled:
            # A product of masks is narrowed by its last factor; the others may mean something else as well.
            value = present.get(key.keys[-1], _value(present, key))
            yield key.keys[-1], rows.put_back(spec, key, freed(spec, value), getattr(batch, name))


def _filled(batch: RolloutBatch) -> set[str]:
    """Fields in which the build filled in, or masked out, what was missing."""
    found = {repair for repair, count in batch.repairs.items() if ": missing" in repair and count}
    masked = {"loss_mask" for repair in found if repair.endswith("masked out")}
    return masked | {repair.partition(":")[0] for repair in found}


def _with_key(names: Names, wrong: Violation) -> Violation:
    key = names.key(wrong.field)
    if key is None or str(key) == wrong.field:
        return wrong
    return replace(wrong, found=f"{wrong.found} (key {key}{f' of {names.trainer}' if names.trainer else ''})")
