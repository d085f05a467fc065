"""A linear recurrence that runs backwards through a packed vector, in parallel.

Every discounted sum of this library (returns, generalised advantages, values carried over tool tokens, moving averages)
is one such recurrence; a sample ends where the decay is 0, so no loop over samples exists.
"""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import pad

_CHUNK = 16


def reverse_scan(inputs: Float[Tensor, "entries"], decays: Float[Tensor, "entries"]) -> Float[Tensor, "entries"]:
    """``x[t] = inputs[t] + decays[t] * x[t + 1]``, with ``x`` = 0 past the end.

    Solved in chunks side by side, then once more for what enters each chunk, instead of one step per entry: a vector of
    a million entries takes five rounds. Decays should not exceed 1 in size.
    """
    length = inputs.shape[0]
    padding = (0, -length % _CHUNK)
    within, reach = _scan_rows(
        pad(inputs, padding).unflatten(0, (-1, _CHUNK)), pad(decays, padding).unflatten(0, (-1, _CHUNK))
    )
    if length > _CHUNK:
        entering = following(reverse_scan(within[:, 0], reach[:, 0]), 0.0)
        within = within + reach * entering.unsqueeze(1)
    return within.flatten()[:length]


def _scan_rows(
    inputs: Float[Tensor, "rows width"], decays: Float[Tensor, "rows width"]
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
    """The recurrence inside each row, and the product of the decays from each entry to the end of its row."""
    reach = 1
    while reach < inputs.shape[1]:
        inputs = inputs + decays * pad(inputs[:, reach:], (0, reach))
        decays = decays * pad(decays[:, reach:], (0, reach), value=1.0)
        reach *= 2
    return inputs, decays


def following(values: Shaped[Tensor, "entries"], last: int | float) -> Shaped[Tensor, "entries"]:
    """The next entry at each place; ``last`` at the end."""
    return pad(values, (0, 1), value=last)[1:]


def forward_scan(inputs: Float[Tensor, "entries"], decays: Float[Tensor, "entries"]) -> Float[Tensor, "entries"]:
    """``x[t] = inputs[t] + decays[t] * x[t - 1]``, with ``x`` = 0 before the start."""
    return reverse_scan(inputs.flip(0), decays.flip(0)).flip(0)
