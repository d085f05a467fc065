"""How input is made, and what one tensor of it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rollout_contract.check.sizes import Sizes
from rollout_contract.roles import Role

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


def live_input(name: str, role: Role | None, dims: tuple[str, ...], tensor: Tensor) -> Input:
    """The tensor as a non-leaf: an in-place edit of it is then possible, and can be found."""
    leaf = tensor.detach().clone().requires_grad_()
    return Input(name, role, dims, leaf.clone(), leaf)
