"""What a batch holds, and the seal that finds edits made after the build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rollout_contract.errors import Violation
from rollout_contract.layout import Layout
from rollout_contract.roles import Role
from rollout_contract.schema.graph import describe_graph
from rollout_contract.schema.plan import Plan

LAYOUT_FIELDS = ("response_lengths", "prompt_lengths", "group_ids")


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The content of a batch; never changed after it was made.

    Attributes:
        values: the bound fields, by name.
        layout: lengths and groups.
        device: where every field lies that is not tagged AnyDevice.
        versions: the version counter of each fixed tensor when it was validated.
        repairs: what the build did to the input, with counts (an int, or a 0-dim tensor not yet read from the device).
        is_part: whether the batch was split off a larger step, so that its counts are not those of the step.
    """

    values: Mapping[str, Any]
    layout: Layout
    device: torch.device
    versions: Mapping[str, int]
    repairs: Mapping[str, Any]
    is_part: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))


def seal(plan: Plan, values: Mapping[str, Any]) -> dict[str, int]:
    """Version counters of the fixed tensors. An in-place edit through any alias of the storage raises them."""
    return {
        name: value._version
        for name, value in values.items()
        if plan[name].role is Role.FIXED and isinstance(value, Tensor) and not value.is_inference()
    }


def broken_seals(state: State) -> Iterator[Violation]:
    """Fixed fields that were edited, or made live, after they had been validated.

    Edits that torch does not count leave no trace: through ``.data``, a NumPy view, or a raw pointer.
    """
    for name, version in state.versions.items():
        tensor: Tensor = state.values[name]
        if tensor.requires_grad:
            expected = "no graph, as when the batch was built"
            hint = "do not call requires_grad_() on a batch's tensor, nor write a live tensor into it"
            yield Violation(name, "live graph", expected, describe_graph(tensor), hint)
        elif tensor._version != version:
            hint = "compute a new tensor and build or extend a batch with it"
            edits = tensor._version - version
            found = "an edit in place since then" if edits == 1 else f"{edits} edits in place since then"
            yield Violation(name, "mutated", "the values that were validated", found, hint)
