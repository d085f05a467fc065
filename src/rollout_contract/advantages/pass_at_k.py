"""Pass@k training: only the best response of a group is rewarded, for what it is above the second."""

from __future__ import annotations

from rollout_contract.advantages.estimator import NonNegative, estimator, to_tokens
from rollout_contract.advantages.groups import grouped
from rollout_contract.kernels.groups import leader
from rollout_contract.kernels.moments import inverse_std
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="best of the group: (R_1 - R_2) / (std of the group + eps); all others: 0",
    paper="arXiv:2503.19595",
    known_as={"verl": "algorithm.adv_estimator=grpo_passk"},
)
def pass_at_k(batch: RewardBatch, *, normalize: bool = True, eps: NonNegative = 1e-6) -> FixedTensor:
    """Advantages for the best of k (arXiv:2503.19595), the same number on every trained token of a sample.

    When several share the first place, all of the group get 0. So does a group of one, which has no second (verl
    raises).

    Args:
        batch: rewards and group ids of whole groups; NaN rewards are left out and get 0.
        normalize: divide by the standard deviation of the group (with Bessel's correction).
        eps: added to it.

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    margin = leader(found.rewards, ~found.rewards.isnan(), found.group_index, found.num_groups).margin
    return to_tokens(batch, margin * inverse_std(found.group.variance, eps, "std") if normalize else margin)
