"""The kernels are one graph each: nothing in them depends on what a tensor holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rollout_contract.kernels import groups, moments, returns, scan, token_baseline, value
from tests.advantages.batches import make_case

BATCH = make_case(5, [4, 0, 3, 20, 1], 2, "real").batch()
IDS, INDEX = BATCH.layout.sample_ids(), BATCH.layout.group_index()
MASK, VALUES, REWARDS = BATCH.loss_mask, BATCH.values, BATCH.rewards
SAMPLES, GROUPS = len(BATCH), BATCH.layout.num_groups
CELLS = BATCH.layout.expand(INDEX) * BATCH.layout.max_length + BATCH.layout.positions()


def group_advantages() -> Tensor:
    group = groups.group_moments(REWARDS, INDEX, GROUPS)
    above = groups.above_others(REWARDS, group) + groups.above_mean(REWARDS, group)
    above = above + groups.above_weighted_mean(REWARDS, REWARDS.square(), group, INDEX, GROUPS)
    raw = groups.keep_singletons(above, REWARDS, group)
    return raw * moments.inverse_std(group.variance, 1e-6, "std")


def generalised() -> Tensor:
    found = returns.temporal_differences(BATCH.token_rewards, VALUES, MASK, IDS, 0.9, torch.zeros_like(VALUES))
    return returns.discounted_sums(found, MASK, IDS, 0.8)


def baseline() -> Tensor:
    energy = token_baseline.gradient_energy(BATCH.old_log_probs, BATCH.sum_pi_squared, MASK, IDS)
    return token_baseline.weighted_baseline(VALUES, energy, MASK, CELLS, GROUPS * BATCH.layout.max_length, 1e-8)


KERNELS: dict[str, Callable[[], Tensor]] = {
    "scan": lambda: scan.reverse_scan(VALUES, VALUES.sigmoid()) + scan.forward_scan(VALUES, VALUES.sigmoid()),
    "group advantages": group_advantages,
    "leader": lambda: groups.leader(REWARDS, ~REWARDS.isnan(), INDEX, GROUPS).margin,
    "zero variance": lambda: groups.zero_variance(REWARDS, INDEX, GROUPS),
    "whitening": lambda: moments.moments(VALUES, MASK).center(VALUES),
    "gae": generalised,
    "last trainable": lambda: returns.last_trainable(MASK, IDS, SAMPLES),
    "positions": lambda: token_baseline.trainable_positions(MASK, IDS, SAMPLES),
    "token baseline": baseline,
    "value error": lambda: value.value_error(value.clip_values(VALUES, BATCH.token_rewards, 0.2), VALUES, 1.0),
}


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_one_graph(name: str) -> None:
    compiled = torch.compile(KERNELS[name], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(), KERNELS[name]())
