"""Synthetic batches of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from rollout_contract.check.findings import CannotCheckError
from rollout_contract.check.maker import Maker
from rollout_contract.check.sizes import Sizes
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch, _make
from rollout_contract.schema.plan import FieldSpec
from rollout_contract.schema.state import State

_FROM_LIFE_CYCLE = ("loss_weights", "correction_weights", "aggregation", "sampling")
_PLAIN: tuple[Any, ...] = (0, 0.5, "a", False, {}, [], None)


def make_batch(maker: Maker, schema: type[RolloutBatch]) -> RolloutBatch:
    """A batch of ``schema``: built, weighted and bound, as a loss gets it."""
    sizes, plan = maker.setup.sizes, schema.__plan__
    maker.dims.give("tokens", "batch", "groups", "sequence")
    drawn: dict[str, Any] = {name: _draw(maker, spec) for name, spec in plan.items() if _is_drawn(spec)}
    fixed = {name: tensor for name, tensor in drawn.items() if plan[name].role is Role.FIXED}
    maker.mask = fixed["loss_mask"]
    batch = schema(**host_fields(schema, sizes), **fixed).weighted("seq-mean-token-mean")
    for name in fixed:
        maker.remember(name, Role.FIXED, _dims(plan[name]), getattr(batch, name))
    trainable = {name: tensor for name, tensor in drawn.items() if plan[name].role is Role.TRAINABLE}
    if trainable and maker.setup.bound:
        live = {n: maker.remember(n, Role.TRAINABLE, _dims(plan[n]), t).tensor for n, t in trainable.items()}
        batch = batch.bind(**live)
    return _made_live(batch, maker) if maker.setup.secret else batch


def _is_drawn(spec: FieldSpec) -> bool:
    return spec.is_tensor and spec.name not in _FROM_LIFE_CYCLE


def _dims(spec: FieldSpec) -> tuple[str, ...]:
    return tuple(map(str, spec.dims))


def _draw(maker: Maker, spec: FieldSpec) -> Tensor:
    dims = _dims(spec)
    shape = maker.dims.shape(dims)
    if spec.name == "loss_mask":
        numbers = maker.mask_numbers(shape)
    else:
        numbers = maker.numbers(spec.name, dims, shape, spec.family, spec.dtypes, spec.role)
    return maker.placed(numbers, spec.any_device)


def _made_live(batch: RolloutBatch, maker: Maker) -> RolloutBatch:
    """The batch with a graph on every fixed field, which its constructor would have cut."""
    state = batch._state
    noted = {name: maker.tensors.get(maker.prefix + name) for name in state.values}
    values = {**state.values, **{name: given.tensor for name, given in noted.items() if given is not None}}
    return _make(type(batch), State(values, state.layout, state.device, {}, state.repairs, state.is_part))


def host_fields(schema: type[RolloutBatch], sizes: Sizes) -> Mapping[str, Any]:
    """Lengths and groups, and a value for every further host field that the schema requires."""
    count = len(sizes.response_lengths)
    fields: dict[str, Any] = {
        "response_lengths": sizes.response_lengths,
        "prompt_lengths": sizes.prompt_lengths,
        "group_ids": sizes.group_ids,
        "row_ids": tuple(range(count)),
    }
    for name, spec in schema.__plan__.items():
        if spec.is_tensor or name in fields or name in _FROM_LIFE_CYCLE:
            continue
        if spec.role is Role.PER_SAMPLE:
            fields[name] = [_plain(schema, spec)[0]] * count
        elif spec.required:
            fields[name] = _plain(schema, spec)
    return fields


def _plain(schema: type[RolloutBatch], spec: FieldSpec) -> Any:
    """The first of a few plain values that the annotation accepts."""
    for candidate in (*_listed(spec), *_PLAIN):
        try:
            given = [candidate] if spec.role is Role.PER_SAMPLE else candidate
            return None if spec.adapter is None else spec.adapter.validate_python(given)
        except ValidationError:
            continue
    raise CannotCheckError(f"no value can be made up for the field {schema.__name__}.{spec.name}; give it a default")


def _listed(spec: FieldSpec) -> list[Any]:
    """The values that a Literal or an Enum lists."""
    try:
        found = spec.adapter.json_schema() if spec.adapter is not None else {}
    except Exception:
        return []
    inner = found.get("items", found)
    inner = next(iter(found.get("$defs", {}).values()), inner) if "$ref" in inner else inner
    return list(inner.get("enum", [inner["const"]] if "const" in inner else []))
