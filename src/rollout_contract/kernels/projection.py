"""From hidden states to logits and back, a chunk of tokens at a time.

``weight`` is the output layer [vocab, width]. Without one, the states already are logits. The product is computed in
the dtype of the states, everything after it in float32 (float64 for float64 states), whatever autocast says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def working_dtype(states: Tensor) -> torch.dtype:
    """The dtype in which normalisers and log-probs are computed."""
    return torch.float64 if states.dtype == torch.float64 else torch.float32


def scaled_logits(
    states: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"] | None,
    temperature: Float[Tensor, "tokens"],
) -> Float[Tensor, "tokens vocab"]:
    """Logits divided by the temperature of each token."""
    logits = states
    if weight is not None:
        with torch.autocast(states.device.type, enabled=False):
            logits = states @ weight.to(states.dtype).t()
    return logits.to(working_dtype(states)) / temperature.unsqueeze(-1)


def chunks(size: int, *columns: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The rows of all columns, ``size`` at a time; None stays None. No rows make one chunk without rows."""
    return zip(*(repeat(None) if column is None else column.split(size) for column in columns))  # noqa: B905


class ProjectionGradients:
    """Gradients of the states and of the output layer, collected chunk by chunk.

    A token that no loss reads (its upstream gradient is 0) gets a gradient of exactly 0, whatever its row holds.
    """

    def __init__(self, weight: Tensor | None, *, for_states: bool, for_weight: bool) -> None:
        self.weight = weight
        self.for_states = for_states
        self.states_gradients: list[Tensor] = []
        self.weight_gradient: Tensor | None = None
        if weight is not None and for_weight:
            self.weight_gradient = torch.zeros_like(weight, dtype=working_dtype(weight))

    def add(self, states: Tensor, temperature: Tensor, gradient: Tensor, is_read: Tensor) -> None:
        """Take a chunk's states [n, width], the gradient [n, vocab] of its scaled logits, and who is read [n]."""
        if torch.is_grad_enabled():
            # Differentiated again: an upstream gradient that is 0 by chance, not by a mask, has a derivative.
            is_read = is_read | gradient.isfinite().all(-1)
        rows = is_read.unsqueeze(-1)
        gradient = (gradient / temperature.unsqueeze(-1)).where(rows, 0.0).to(states.dtype)
        if self.weight is None:
            self.states_gradients.append(gradient)
            return
        with torch.autocast(states.device.type, enabled=False):
            if self.for_states:
                self.states_gradients.append(gradient @ self.weight.to(states.dtype))
            if self.weight_gradient is not None:
                self.weight_gradient += gradient.t() @ states.where(rows, 0.0)

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the states and of the weight."""
        states_gradient = torch.cat(self.states_gradients) if self.for_states else None
        if self.weight is None or self.weight_gradient is None:
            return states_gradient, None
        return states_gradient, self.weight_gradient.to(self.weight.dtype)
