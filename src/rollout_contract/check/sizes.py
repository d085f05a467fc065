"""The shapes on which a function is run: two of distinct primes, and the edges.

With distinct primes no dimension can be taken for another one: ``tokens`` times ``batch`` does not broadcast, and a
size in an error message names its dimension. A second assignment tells a size that was computed from one that was
written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Masking = Literal["holes", "none trained"]


@dataclass(frozen=True)
class Sizes:
    """One assignment.

    Attributes:
        name: for messages.
        response_lengths, prompt_lengths, group_ids: one entry for each sample.
        masking: ``holes``: some tokens inside responses are masked, every response keeps at least one trained token.
        others: sizes of ``topk`` and ``vocab``, then of further dimensions in the order in which they appear.
    """

    name: str
    response_lengths: tuple[int, ...]
    prompt_lengths: tuple[int, ...]
    group_ids: tuple[int, ...]
    others: tuple[int, ...]
    masking: Masking = "holes"

    @cached_property
    def named(self) -> dict[str, int]:
        """The sizes of the dimensions that this library gives a meaning."""
        tokens = sum(self.response_lengths)
        return {
            "tokens": tokens,
            "batch": len(self.response_lengths),
            "groups": len(set(self.group_ids)),
            "sequence": tokens + sum(self.prompt_lengths),
            "topk": self.others[0],
            "vocab": self.others[1],
        }

    @property
    def spare(self) -> tuple[int, ...]:
        return self.others[2:]


_PRIMES = (47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137)

FIRST = Sizes(
    "5 samples, 23 tokens", (4, 7, 1, 6, 5), (3, 2, 4, 3, 2), (7, 9, 7, 9, 7), (3, 11, 13, 17, 19, 31, 41, *_PRIMES)
)
SECOND = Sizes(
    "7 samples, 29 tokens",
    (2, 5, 3, 8, 1, 6, 4),
    (2, 2, 3, 2, 1, 2, 2),
    (4, 8, 4, 6, 8, 6, 4),
    (5, 13, 17, 19, 11, 37, 31, *_PRIMES[::-1]),
)
SQUARE = Sizes("5 samples, 5 tokens", (0, 3, 0, 1, 1), (3, 2, 4, 3, 2), (7, 9, 7, 9, 7), FIRST.others)
"""As many samples as tokens, so that one broadcasts against the other without an error."""

SQUARE_PARTS = ((0, 1), (2, 3, 4))
"""Rows of ``SQUARE``; in neither part there are as many samples as tokens."""

EMPTY_RESPONSE = Sizes("a response without tokens", (3, 0, 2), (3, 2, 4), (7, 9, 7), FIRST.others)

EDGES = (
    Sizes("no samples", (), (), (), FIRST.others),
    Sizes("one token", (1,), (2,), (7,), FIRST.others),
    Sizes("every token masked", (4, 7, 1), (3, 2, 4), (7, 9, 7), FIRST.others, "none trained"),
    EMPTY_RESPONSE,
)
