"""Batches for the tests of advantage estimators, in plain numbers and as one wide schema."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract.configuration import settings
from rollout_contract.schemas import (
    BootstrappedGAEBatch,
    OPDBatch,
    OTBBatch,
    ReMaxBatch,
    ReverseKLBatch,
    RewardComponentsBatch,
    RoleRewardBatch,
)

Numbers = list[list[float]]

REWARDS = ("binary", "real", "equal", "large")


class EveryInput(
    BootstrappedGAEBatch, ReMaxBatch, OTBBatch, RewardComponentsBatch, RoleRewardBatch, OPDBatch, ReverseKLBatch
):
    """What any estimator reads."""


@dataclass(frozen=True)
class Case:
    """A batch in plain numbers: rows of numbers per token, one number per sample."""

    mask: list[list[bool]]
    group_ids: list[int]
    rewards: list[float]
    components: Numbers
    baselines: list[float]
    final_values: list[float]
    roles: list[str]
    token_rewards: Numbers
    values: Numbers
    log_probs: Numbers
    sum_pi_squared: Numbers

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.mask]

    def batch(self, dtype: torch.dtype = torch.float64, **changes: Any) -> EveryInput:
        """The same as a batch. NaN rewards are let in by leaving the checks of values out."""

        def packed(rows: Numbers) -> Tensor:
            return torch.tensor([number for row in rows for number in row], dtype=dtype)

        fields: dict[str, Any] = {
            "response_lengths": self.lengths,
            "loss_mask": torch.tensor([keep for row in self.mask for keep in row], dtype=torch.bool),
            "group_ids": self.group_ids,
            "rewards": torch.tensor(self.rewards, dtype=dtype),
            "reward_components": torch.tensor(self.components, dtype=dtype).reshape(-1, 2),
            "reward_baselines": torch.tensor(self.baselines, dtype=dtype),
            "final_values": torch.tensor(self.final_values, dtype=dtype),
            "roles": self.roles,
            "token_rewards": packed(self.token_rewards),
            "values": packed(self.values),
            "old_log_probs": packed(self.log_probs),
            "sum_pi_squared": packed(self.sum_pi_squared),
            "teacher_log_probs": packed(self.log_probs) * 1.5,
            "reverse_kl": packed(self.values) * 0.5,
        }
        with settings(level="structure"):
            return EveryInput(**(fields | changes))

    def flat(self, rows: Numbers) -> Tensor:
        return torch.tensor([number for row in rows for number in row], dtype=torch.float64)

    def permuted(self, order: list[int]) -> Case:
        return replace(self, **{name: [getattr(self, name)[i] for i in order] for name in self.__dataclass_fields__})


def make_case(seed: int, lengths: list[int], num_groups: int, kind: str) -> Case:
    """Random numbers for one structure."""
    draw = random.Random(seed)

    def rows(one: Any) -> Numbers:
        return [[one() for _ in range(length)] for length in lengths]

    def reward() -> float:
        choices = {"binary": float(draw.random() < 0.5), "real": draw.gauss(0.0, 1.0), "equal": 0.7}
        return choices[kind] if kind != "large" else 1e6 + draw.gauss(0.0, 1.0)

    log_probs = rows(lambda: -draw.uniform(0.01, 4.0))
    return Case(
        mask=[[draw.random() < 0.75 for _ in range(length)] for length in lengths],
        group_ids=[draw.randrange(num_groups) * 7 for _ in lengths],
        rewards=[reward() for _ in lengths],
        components=[[reward(), draw.gauss(0.0, 1.0)] for _ in lengths],
        baselines=[draw.gauss(0.0, 1.0) for _ in lengths],
        final_values=[draw.choice([0.0, draw.gauss(0.0, 1.0)]) for _ in lengths],
        roles=[draw.choice(["first", "second", "judge"]) for _ in lengths],
        token_rewards=rows(lambda: draw.gauss(0.0, 1.0)),
        values=rows(lambda: draw.gauss(0.0, 1.0)),
        log_probs=log_probs,
        sum_pi_squared=[[math.exp(2 * p) + 0.5 * (1 - math.exp(p)) ** 2 for p in row] for row in log_probs],
    )


@st.composite
def cases(draw: st.DrawFn, min_samples: int = 0) -> Case:
    """Ragged batches with empty responses, holes in the mask, and groups of one."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=min_samples, max_size=8))
    seed, groups = draw(st.integers(0, 2**32)), draw(st.integers(1, 4))
    return make_case(seed, lengths, groups, draw(st.sampled_from(REWARDS)))


def over_cases(test: Any) -> Any:
    """Run a test with many cases. The first one warms caches up, so no time limit holds."""
    return hypothesis.settings(deadline=None)(hypothesis.given(case=cases())(test))
