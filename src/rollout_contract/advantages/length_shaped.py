"""Length-shaped GRPO: among the best answers of a group, the cheaper ones are worth more."""

from __future__ import annotations

from torch import Tensor

from rollout_contract.advantages.estimator import NonNegative, estimator, to_tokens
from rollout_contract.advantages.groups import grouped, grouped_values, trained_counts
from rollout_contract.kernels.groups import above_mean
from rollout_contract.kernels.segments import segment_mean
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="R' - mean of R' in the group; R' = R (1 + clamp(1 - cost / mean cost of the best, 0, 1)) if best, else R",
    paper="https://github.com/PrimeIntellect-ai/prime-rl",
    known_as={"prime-rl": "algo.type=grpo, length_penalty.type=tokens"},
)
def length_shaped_grpo(batch: RewardBatch, *, tool_token_cost: NonNegative = 0.0) -> FixedTensor:
    """Dr.GRPO on rewards that are raised, to at most twice their size, where the answer is best and cheap.

    Best are the samples with the highest reward of their group, if it is above 0. Cheaper than the mean of these earns
    the bonus; dearer costs nothing, so a wrong short answer is never preferred.

    Args:
        batch: rewards and group ids of whole groups; NaN rewards are left out and get 0.
        tool_token_cost: what a masked token of the response costs; a trained one costs 1.

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch)
    trained = trained_counts(batch, like=found.rewards)
    lengths = batch.layout.lengths(batch.device).to(found.rewards.dtype)
    costs = trained + tool_token_cost * (lengths - trained)
    best = (found.rewards == found.group.shift) & (found.rewards > 0)
    mean_cost: Tensor = segment_mean(costs, best, found.group_index, found.num_groups)[found.group_index]
    bonus = (1.0 - costs / mean_cost.where(mean_cost > 0, 1.0)).clamp(0.0, 1.0).where(best & (mean_cost > 0), 0.0)
    shaped = grouped_values(batch, found.rewards * (1.0 + bonus))
    return to_tokens(batch, above_mean(shaped.rewards, shaped.group))
