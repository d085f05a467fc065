"""A number per token, by a condition."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def choose(
    condition: Bool[Tensor, "tokens"], if_true: float, if_false: float, like: Float[Tensor, "tokens"]
) -> Float[Tensor, "tokens"]:
    """``if_true`` or ``if_false`` at each token, in the dtype of ``like``.

    ``torch.where`` with two Python numbers would round them to the default dtype, float32, even for float64 inputs.
    """
    return torch.where(condition, like.new_full((), if_true), like.new_full((), if_false))
