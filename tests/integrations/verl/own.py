"""verl's own configuration and functions."""

from __future__ import annotations

import copy
from typing import Any

from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

VERLS_OWN = dict(core_algos.POLICY_LOSS_REGISTRY)
"""As verl registers them, before anything here is registered."""


def actor_config(
    correction: dict[str, Any] | None = None, policy_loss: dict[str, Any] | None = None, **options: Any
) -> ActorConfig:
    """Bounds that random batches reach, and a correction."""
    loss: dict[str, Any] = {"dro_beta": 0.3, "ppo_kl_coef": 0.5, "clip_cov_lb": 0.01, "clip_cov_ub": 0.6}
    loss |= {"clip_cov_ratio": 1.0, "kl_cov_ratio": 0.3} | (policy_loss or {})
    plain: dict[str, Any] = {"clip_ratio_low": 0.15, "clip_ratio_high": 0.25, "clip_ratio_c": 1.5}
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(rollout_correction=RolloutCorrectionConfig(**(correction or {})), **loss),
        **(plain | options),
    )


def counted(config: ActorConfig, info: dict[str, Any]) -> ActorConfig:
    """The configuration after verl has counted the global batch."""
    found = copy.deepcopy(config)
    found.global_batch_info.update(info)
    return found
