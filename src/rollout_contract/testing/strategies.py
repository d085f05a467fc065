"""Hypothesis strategies: valid batches of a schema, and input with one broken rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract.check.batches import host_fields
from rollout_contract.check.sizes import Sizes
from rollout_contract.configuration import settings
from rollout_contract.layout import Layout
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schema.plan import FieldSpec
from rollout_contract.testing.breakages import BREAKAGES, Breakage

BatchT = TypeVar("BatchT", bound=RolloutBatch)

_FROM_LIFE_CYCLE = ("loss_weights", "correction_weights")
_GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30)


@dataclass(frozen=True, eq=False)
class BrokenBatch:
    """Input for a schema that breaks one rule.

    Attributes:
        schema: what it is for.
        fields: the arguments of its constructor.
        field, rule: what the error names; see ``ContractError.violations``.
    """

    schema: type[RolloutBatch]
    fields: Mapping[str, Any]
    field: str
    rule: str

    def build(self) -> RolloutBatch:
        """Try to build it, with every check on. Raises the ContractError."""
        with settings(level="values", live_inputs="refuse", missing="refuse", half_precision="refuse"):
            return self.schema(**self.fields)

    def __repr__(self) -> str:
        return f"BrokenBatch({self.schema.__name__}: {self.field} [{self.rule}])"


def batches(
    schema: type[BatchT], *, bound: bool = False, max_samples: int = 4, max_length: int = 5
) -> st.SearchStrategy[BatchT]:
    """Valid batches: ragged, with empty responses, no samples, nothing to train, and garbage at masked tokens.

    Args:
        schema: what is built.
        bound: give them weights (``weighted("token-mean")``) and live trainable fields, as a loss needs them. Otherwise
            they are steps before any of that.
        max_samples: the largest number of samples.
        max_length: the longest response.

    >>> @given(batches(MyStep, bound=True))
    ... def test_my_loss(batch: MyStep) -> None: ...
    """
    return _fields(schema, max_samples, max_length, 0).map(lambda fields: _build(schema, fields, bound))


def _build(schema: type[BatchT], fields: Mapping[str, Any], bound: bool) -> BatchT:
    plan = schema.__plan__
    trainable = {name: value for name, value in fields.items() if plan[name].role is Role.TRAINABLE}
    batch = schema(**{name: value for name, value in fields.items() if name not in trainable})
    if not bound:
        return batch
    batch = batch.weighted("token-mean")
    with torch.enable_grad():
        live = {name: value.requires_grad_() * 1.0 for name, value in trainable.items()}
        return batch.bind(**live) if live else batch


def broken_batches(schema: type[RolloutBatch]) -> st.SearchStrategy[BrokenBatch]:
    """Input that breaks one rule, which the drawn object names; ``build()`` raises.

    Every way of breaking that the schema allows is drawn: missing and unknown fields, lengths, shapes, dtypes, masks,
    values at trained tokens, devices, live and missing graphs.

    >>> @given(broken_batches(MyStep))
    ... def test_my_producer_check(broken: BrokenBatch) -> None:
    ...     with pytest.raises(ContractError):
    ...         broken.build()
    """
    possible = [breakage for breakage in BREAKAGES if breakage.targets(schema.__plan__)]
    return st.sampled_from(possible).flatmap(lambda breakage: _broken(schema, breakage))


def _broken(schema: type[RolloutBatch], breakage: Breakage) -> st.SearchStrategy[BrokenBatch]:
    """Two samples at least, each with a trained token, so that there is something to break."""

    def broken(fields: dict[str, Any], target: str) -> BrokenBatch:
        given = {n: v for n, v in fields.items() if schema.__plan__[n].role is not Role.TRAINABLE}
        changed, field = breakage.apply(schema.__plan__[target], given, fields)
        return BrokenBatch(schema, changed, field, breakage.rule)

    targets = st.sampled_from(breakage.targets(schema.__plan__))
    return st.builds(broken, _fields(schema, 4, 5, 2), targets)


# -- fields --------------------------------------------------------------------------------------------------------


@st.composite
def _fields(
    draw: Callable[..., Any], schema: type[RolloutBatch], max_samples: int, max_length: int, min_samples: int
) -> dict[str, Any]:
    """Arguments of a constructor; with ``min_samples``, responses have two tokens or more and the first one trains."""
    shortest = 2 if min_samples else 0
    lengths = draw(st.lists(st.integers(shortest, max_length), min_size=min_samples, max_size=max_samples))
    count = len(lengths)
    prompts = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    layout = Layout(lengths, prompt_lengths=prompts, group_ids=groups)
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=layout.num_tokens, max_size=layout.num_tokens)))
    mask = mask.bool()
    if min_samples:
        mask |= layout.positions() == 0
    sizes = {name: draw(st.integers(1, 3)) for name in _other_dims(schema)}
    sizes |= {"tokens": layout.num_tokens, "batch": count, "groups": layout.num_groups}
    sizes["sequence"] = layout.num_sequence_tokens
    host = host_fields(schema, Sizes("", tuple(lengths), tuple(prompts), tuple(groups), (1, 1)))
    fields = {**host, "loss_mask": mask}
    for name, spec in schema.__plan__.items():
        if spec.is_tensor and name not in fields and name not in _FROM_LIFE_CYCLE:
            fields[name] = draw(_tensors(spec, _shape(spec, sizes), mask))
    return fields


def _other_dims(schema: type[RolloutBatch]) -> list[str]:
    specs = [spec for spec in schema.__plan__.values() if spec.is_tensor]
    return sorted({dim for spec in specs for dim in spec.dims[1:] if isinstance(dim, str)})


def _shape(spec: FieldSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec.dims)


@st.composite
def _tensors(draw: Callable[..., Any], spec: FieldSpec, shape: Sequence[int], mask: Tensor) -> Tensor:
    size = 1
    for dim in shape:
        size *= dim
    numbers = draw(st.lists(_entries(spec), min_size=size, max_size=size))
    tensor = torch.tensor(numbers, dtype=_dtype(spec)).reshape(tuple(shape))
    is_garbled = spec.family == "float" and spec.axis == "tokens" and draw(st.booleans())
    if not is_garbled:
        return tensor
    where = ~mask.reshape(-1, *(1,) * (tensor.dim() - 1))
    return tensor.masked_fill(where, draw(st.sampled_from(_GARBAGE)))


def _entries(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.family == "bool":
        return st.booleans()
    if spec.family == "int":
        return st.integers(0, 9)
    low, high = (-30.0, 0.0) if spec.holds_log_probs else (0.0, 3.0) if "weight" in spec.name else (-10.0, 10.0)
    return st.floats(low, high, width=32)


def _dtype(spec: FieldSpec) -> torch.dtype:
    wanted = {"float": "float32", "int": "int64", "bool": "bool"}[spec.family]
    found: torch.dtype = getattr(torch, wanted if wanted in spec.dtypes else spec.dtypes[-1])
    return found
