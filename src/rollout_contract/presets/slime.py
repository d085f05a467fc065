"""slime's flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from rollout_contract.errors import Violation
from rollout_contract.kl import LowVarKL
from rollout_contract.objectives import CISPO, GSPO, Objective, PPOClip
from rollout_contract.presets.megatron_flags import MegatronFlags
from rollout_contract.presets.options import not_covered


class SlimeOptions(MegatronFlags):
    """Of ``train.py``, and of the MIS function in its examples."""

    trainer: ClassVar[str] = "slime"
    version: ClassVar[str] = "624b824a8"
    log_ratio_bound: ClassVar[float | None] = None

    advantage_estimator: Literal[
        "grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"
    ] = "grpo"
    custom_advantage_function_path: str | None = None

    @property
    def estimator(self) -> str:
        return self.advantage_estimator

    def refusals(self) -> Iterator[Violation]:
        yield from super().refusals()
        if self.custom_advantage_function_path is not None:
            found = self.custom_advantage_function_path
            yield not_covered("custom_advantage_function_path", found, "the advantages are code of yours")

    def policy_objective(self) -> Objective:
        if self.advantage_estimator == "cispo":
            high = self.eps_clip if self.eps_clip_high is None else self.eps_clip_high
            return CISPO(ratio_min=max(1 - self.eps_clip, 0.0), ratio_max=1 + high, log_ratio_bound=None)
        kind = GSPO if self.advantage_estimator == "gspo" else PPOClip
        return kind.model_validate(self.clip)

    def low_var_kl(self) -> LowVarKL:
        return LowVarKL(input_bound=None)

    def _notes(self) -> Iterator[str]:
        yield from super()._notes()
        if self.advantage_estimator == "ppo":
            yield "slime's GAE steps over tool tokens too: give the estimator a batch whose mask covers them"
