"""Batches that hypothesis makes: ragged lengths with zeros, masks with holes, groups of one, ratios from 1 to e^200.

Hypothesis draws the size, the kinds of numbers and a seed; lengths, masks and numbers come from a generator with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

Numbers = list[list[float]]

SPREADS = (0.0, 1e-9, 1e-3, 0.2, 0.5, 2.0, 25.0, 80.0)
ADVANTAGES = ("tokens", "samples", "mixed", "zeros")
REWARDS = ("binary", "real", "equal")
POSITIVE_WEIGHT = 1.7


@dataclass(frozen=True)
class Case:
    """A batch in plain numbers.

    Attributes:
        mask: one row of bools per sample; its shape is that of every per-token field.
        group_ids: the group of each sample.
        tokens: per-token fields in rows, by the name that schemas give them.
        samples: per-sample fields.
    """

    mask: list[list[bool]]
    group_ids: list[int]
    tokens: dict[str, Numbers] = field(repr=False)
    samples: dict[str, list[float]]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"Case(mask={self.mask}, group_ids={self.group_ids}, ...)")

    @property
    def lengths(self) -> list[int]:
        return [len(entries) for entries in self.mask]

    def packed(self, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor([value for entries in self.tokens[name] for value in entries], dtype=dtype)


class _Numbers:
    """Rows of random numbers for one structure."""

    def __init__(self, seed: int, lengths: Sequence[int], spread: float) -> None:
        self.random, self.lengths, self.spread = random.Random(seed), lengths, spread

    def rows(self, one: Any) -> Numbers:
        return [[one() for _ in range(length)] for length in self.lengths]

    def log_ratio(self) -> float:
        outlier = 30.0 if self.spread and self.random.random() < 0.1 else 1.0
        return max(-200.0, min(200.0, self.random.gauss(0.0, self.spread) * outlier))

    def log_probs(self) -> Numbers:
        """Some of them very unlikely, so that the others can be far above."""
        return self.rows(lambda: -self.random.uniform(0.01, 3.0) - max(0.0, -self.log_ratio()))

    def near(self, log_probs: Numbers) -> Numbers:
        return [[min(0.0, value - self.log_ratio()) for value in entries] for entries in log_probs]

    def sum_of_squares(self, log_prob: float) -> float:
        """Of all probabilities of a distribution, of which one is known."""
        probability = math.exp(log_prob)
        return probability**2 + self.random.random() * (1 - probability) ** 2

    def advantages(self, kind: str) -> Numbers:
        if kind == "zeros":
            return self.rows(lambda: 0.0)
        if kind == "samples":
            return [[self.random.gauss(0.0, 1.0)] * length for length in self.lengths]
        zero = 0.3 if kind == "mixed" else 0.0
        return self.rows(lambda: 0.0 if self.random.random() < zero else self.random.gauss(0.0, 1.0))

    def rewards(self, kind: str) -> list[float]:
        same = self.random.gauss(0.0, 1.0)
        one = {
            "binary": lambda: float(self.random.random() < 0.5),
            "real": lambda: self.random.gauss(0.0, 1.0),
            "equal": lambda: same,
        }[kind]
        return [one() for _ in self.lengths]


def make_case(
    seed: int,
    mask: list[list[bool]],
    group_ids: list[int],
    spread: float,
    advantages: str = "mixed",
    rewards: str = "real",
) -> Case:
    numbers = _Numbers(seed, [len(entries) for entries in mask], spread)
    log_probs = numbers.log_probs()
    tokens = {"log_probs": log_probs}
    for name in ("old_log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs"):
        tokens[name] = numbers.near(log_probs)
    gauss = numbers.random.gauss
    for name in ("values", "returns", "value_predictions", "reverse_kl", "token_rewards"):
        tokens[name] = numbers.rows(lambda: gauss(0.0, 1.0))
    for name in ("entropy", "observed_entropy"):
        tokens[name] = numbers.rows(lambda: abs(gauss(0.0, 1.0)))
    tokens["sum_pi_squared"] = [[numbers.sum_of_squares(value) for value in row] for row in tokens["old_log_probs"]]
    tokens["advantages"] = numbers.advantages(advantages)
    samples = {"rewards": numbers.rewards(rewards)}
    for name in ("reward_baselines", "optimal_values", "final_values"):
        samples[name] = numbers.rewards("real")
    positive = [POSITIVE_WEIGHT * (reward > 0) for reward in samples["rewards"]]
    tokens["positive_weights"] = [[weight] * len(row) for weight, row in zip(positive, mask, strict=True)]
    return Case(mask, group_ids, tokens, samples)


def make_mask(numbers: random.Random, num_samples: int, max_length: int = 6) -> list[list[bool]]:
    """Rows without tokens, without trained tokens, with holes, and whole ones."""
    mask = []
    for _ in range(num_samples):
        length, share = numbers.randint(0, max_length), numbers.choice((0.0, 0.6, 0.6, 1.0))
        mask.append([numbers.random() < share for _ in range(length)])
    return mask


@st.composite
def cases(
    draw: st.DrawFn,
    spreads: Sequence[float] = SPREADS,
    advantages: Sequence[str] = ADVANTAGES,
    rewards: Sequence[str] = REWARDS,
    min_samples: int = 1,
) -> Case:
    num_samples, seed = draw(st.integers(min_samples, 6)), draw(st.integers(0, 2**32))
    kinds = draw(st.sampled_from(spreads)), draw(st.sampled_from(advantages)), draw(st.sampled_from(rewards))
    numbers = random.Random(seed)
    mask = make_mask(numbers, num_samples)
    return make_case(seed, mask, [numbers.randint(0, 2) for _ in mask], *kinds)
