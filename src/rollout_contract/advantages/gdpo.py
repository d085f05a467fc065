"""GDPO: several rewards, each normalised by itself, so that none drowns the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rollout_contract.advantages.estimator import NonNegative, estimator, to_tokens
from rollout_contract.advantages.groups import grouped_values
from rollout_contract.errors import Violation, violation_error
from rollout_contract.kernels.groups import above_mean, above_others
from rollout_contract.kernels.moments import inverse_std, moments
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardComponentsBatch


@estimator(
    formula="s = sum over components of w (R - mean) / (std + eps) in the group; (s - mean) / std over the batch",
    paper="arXiv:2601.05242",
    known_as={
        "NeMo-RL": "grpo.adv_estimator.name=gdpo",
        "TRL": "multi_objective_aggregation=normalize_then_sum",
    },
)
def gdpo(
    batch: RewardComponentsBatch,
    *,
    weights: Sequence[float] | None = None,
    leave_one_out: bool = False,
    eps: NonNegative = 1e-6,
    batch_eps: NonNegative = 0.0,
) -> FixedTensor:
    """Group reward-decoupled normalisation (arXiv:2601.05242), the same number on every trained token of a sample.

    A component whose rewards are equal in a group adds exactly 0 there; so does a NaN component of a sample, which
    enters no statistic. A sample without any scored component gets 0 and is left out.

    Args:
        batch: reward components and group ids of whole groups.
        weights: one per component; 1 for each by default.
        leave_one_out: take the mean of the other members as baseline.
        eps: added to the standard deviation of a component in a group.
        batch_eps: added to the standard deviation of the sums over the batch (TRL: 1e-4, NeMo-RL: 0).

    Returns:
        [tokens], 0 at masked tokens.
    """
    components = read(batch, "reward_components")
    count = components.shape[1]
    if weights is not None and len(weights) != count:
        found = f"{len(weights)} weights"
        wrong = Violation("weights", "shape", f"{count} weights, one for each component", found)
        raise violation_error("gdpo", wrong)
    parts = [_normalized(batch, components[:, k], leave_one_out, eps) for k in range(count)]
    factors = components.new_tensor([1.0] * count if weights is None else list(weights))
    sums = torch.stack(parts, 1) @ factors if parts else components.new_zeros(len(batch))
    scored = ~components.isnan().all(1)
    together = moments(sums, scored)
    advantages = together.center(sums) * inverse_std(together.variance, batch_eps, "std")
    return to_tokens(batch, advantages.where(scored, 0.0))


def _normalized(batch: RewardComponentsBatch, rewards: Tensor, leave_one_out: bool, eps: float) -> Tensor:
    found = grouped_values(batch, rewards)
    distance = (above_others if leave_one_out else above_mean)(rewards, found.group)
    return distance * inverse_std(found.group.variance, eps, "std")
