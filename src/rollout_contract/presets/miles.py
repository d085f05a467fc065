"""miles' flags."""

from __future__ import annotations

from typing import ClassVar, Literal

from rollout_contract.kl import LowVarKL
from rollout_contract.objectives import GSPO, Objective, PPOClip
from rollout_contract.presets.megatron_flags import MegatronFlags


class MilesOptions(MegatronFlags):
    """Of ``train.py``, and of the MIS function in its examples."""

    trainer: ClassVar[str] = "miles"
    version: ClassVar[str] = "31f1ca961"
    log_ratio_bound: ClassVar[float | None] = 20.0

    advantage_estimator: Literal["grpo", "gspo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"] = "grpo"

    @property
    def estimator(self) -> str:
        return self.advantage_estimator

    def policy_objective(self) -> Objective:
        kind = GSPO if self.advantage_estimator == "gspo" else PPOClip
        return kind.model_validate(self.clip)

    def low_var_kl(self) -> LowVarKL:
        return LowVarKL()
