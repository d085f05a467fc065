"""The optimal token baseline: what the group's returns are worth at each position, weighted by gradient energy."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rollout_contract.advantages.estimator import NonNegative, estimator, fixed
from rollout_contract.advantages.groups import trained_counts
from rollout_contract.advantages.returns import discounted_returns
from rollout_contract.kernels.groups import leader
from rollout_contract.kernels.segments import segment_count
from rollout_contract.kernels.token_baseline import gradient_energy, trainable_positions, weighted_baseline
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import OTBBatch


@estimator(
    formula="G_t - B_t, B_t = sum of G W / (sum of W + eps) over the group at position t, "
    "W_t = sum up to t of 1 - 2 p + sum of p^2",
    paper="https://verl.readthedocs.io/en/latest/algo/otb.html",
    known_as={"verl": "algorithm.adv_estimator=optimal_token_baseline | tir_optimal_token_baseline"},
)
def optimal_token_baseline(
    batch: OTBBatch,
    *,
    positions: Literal["response", "trained"] = "response",
    zero_tail: bool = False,
    importance_weighted: bool = False,
    eps: NonNegative = 1e-8,
) -> FixedTensor:
    """Reward to go minus a baseline per group and position that minimises the variance of the gradient.

    Args:
        batch: token rewards, the log-probs of the step's start, and the sum of squared probabilities at each position.
        positions: responses are aligned by position in the ``response``, or by number of ``trained`` tokens before it,
            so that tool answers of different length do not shift them (verl's tir_optimal_token_baseline).
        zero_tail: no baseline where the one longest response of a group outlasts all others; otherwise that tail is its
            own baseline and gets about 0.
        importance_weighted: count energy with the square of the batch's correction weights.
        eps: added to the sum of W.

    Returns:
        [tokens], 0 at masked tokens. A group of one has no baseline and keeps its reward to go.
    """
    mask, ids, layout = batch.loss_mask, batch.layout.sample_ids(batch.device), batch.layout
    to_go = discounted_returns(batch)
    weights = read(batch, "correction_weights", like=to_go) if importance_weighted else None
    log_probs = read(batch, "old_log_probs", like=to_go)
    energy = gradient_energy(log_probs, read(batch, "sum_pi_squared", like=to_go), mask, ids, weights)
    place = layout.positions(batch.device) if positions == "response" else trainable_positions(mask, ids, len(batch))
    cells = layout.expand(layout.group_index(batch.device)) * layout.max_length + place
    baseline = weighted_baseline(to_go, energy, mask, cells, layout.num_groups * layout.max_length, eps)
    dropped = _alone(batch)
    if zero_tail:
        dropped = dropped | _tail(batch, place)
    return fixed((to_go - baseline.where(~dropped, 0.0)).where(mask, 0.0))


def _alone(batch: OTBBatch) -> Tensor:
    """[tokens] bool: the sample is the only one of its group."""
    index = batch.layout.group_index(batch.device)
    size = segment_count(index >= 0, index, batch.layout.num_groups)
    return batch.layout.expand(size[index] == 1)


def _tail(batch: OTBBatch, place: Tensor) -> Tensor:
    """[tokens] bool: where the one longest response of a group is longer than the second longest."""
    counts = trained_counts(batch, read(batch, "token_rewards"))
    index = batch.layout.group_index(batch.device)
    longest = leader(counts, counts >= 0, index, batch.layout.num_groups)
    second = longest.second.where(longest.alone, float("inf"))
    return place >= batch.layout.expand(second)
