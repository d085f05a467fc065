"""What TRL's group-based trainers make of rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel

from rollout_contract.presets.recipe import AdvantageRule


class GroupRewards(BaseModel):
    """Scaling, several reward functions, truncated responses."""

    scale_rewards: Literal["group", "batch", "none"] | bool = "group"
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    reward_weights: tuple[float, ...] | None = None
    mask_truncated_completions: bool = False

    def advantages(self) -> AdvantageRule:
        """GRPO in its variants, or GDPO."""
        if self.multi_objective_aggregation == "normalize_then_sum":
            options = {"weights": self.reward_weights, "eps": 1e-4, "batch_eps": 1e-4}
            return AdvantageRule(estimator="gdpo", options=options)
        scale = self.scale_rewards
        if isinstance(scale, bool):
            scale = "group" if scale else "none"
        if scale == "none":
            return AdvantageRule(estimator="dr_grpo")
        return AdvantageRule(estimator="grpo", options={"scale": scale, "eps": 1e-4})

    def reward_notes(self) -> Iterator[str]:
        """What the step itself must hold."""
        if self.mask_truncated_completions:
            yield "take truncated responses out of loss_mask"
        if self.reward_weights and self.multi_objective_aggregation == "sum_then_normalize":
            yield f"rewards are sums of the components with weights {list(self.reward_weights)}"
