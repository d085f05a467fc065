"""GRPO and Dr.GRPO: the reward compared with its group."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rollout_contract.advantages.estimator import NonNegative, Singleton, estimator, to_tokens
from rollout_contract.advantages.groups import Grouped, grouped
from rollout_contract.kernels.groups import above_mean, above_others, keep_singletons
from rollout_contract.kernels.moments import inverse_std, moments
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RewardBatch


@estimator(
    formula="(R - mean of the group) / (std of the group + eps)",
    paper="arXiv:2402.03300",
    known_as={
        "verl": "algorithm.adv_estimator=grpo | grpo_vectorized",
        "TRL": "scale_rewards=group | batch",
        "OpenRLHF": "--advantage_estimator group_norm",
        "NeMo-RL": "grpo.adv_estimator.name=grpo",
        "SkyRL": "trainer.algorithm.advantage_estimator=grpo",
        "miles": "--advantage-estimator grpo | gspo",
        "slime": "--advantage-estimator grpo | gspo | cispo",
    },
)
def grpo(
    batch: RewardBatch,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    leave_one_out: bool = False,
    eps: NonNegative = 1e-6,
    bessel: bool = True,
    variance_floor: NonNegative = 0.0,
    singleton: Singleton = "zero",
) -> FixedTensor:
    """Group-relative advantages (arXiv:2402.03300): the same number on every trained token of a sample.

    A group whose rewards are all equal gets exactly 0. A NaN reward (unscorable) enters no statistic and gets 0.

    Args:
        batch: rewards and group ids of whole groups.
        scale: what the distance from the baseline is divided by: the standard deviation of the ``group``, that of all
            rewards of the ``batch`` (TRL's option), or nothing (``none``, Dr.GRPO, arXiv:2503.20783).
        leave_one_out: take the mean of the other members as baseline (NeMo-RL's default), not that of all.
        eps: added to the standard deviation: 1e-6 in verl, SkyRL and NeMo-RL, 1e-4 in TRL, 1e-9 in OpenRLHF.
        bessel: divide by n - 1 in the variance, as all of them do.
        variance_floor: smallest variance to divide by; verl's vectorised form has 1e-6.
        singleton: a group of one gets 0, or ``raw``: its reward, as if mean 0 and standard deviation 1 were known.

    Returns:
        [tokens], 0 at masked tokens.
    """
    found = grouped(batch, bessel)
    distance = (above_others if leave_one_out else above_mean)(found.rewards, found.group)
    if singleton == "raw":
        distance = keep_singletons(distance, found.rewards, found.group)
    return to_tokens(batch, distance * _inverse_scale(found, scale, eps, bessel, variance_floor))


def _inverse_scale(found: Grouped, scale: str, eps: float, bessel: bool, floor: float) -> Tensor | float:
    if scale == "none":
        return 1.0
    if scale == "batch":
        variance = moments(found.rewards, ~found.rewards.isnan(), bessel).variance
    else:
        variance = found.group.variance.where(found.group.number > 1, 1.0)
    return inverse_std(variance.clamp(min=floor), eps, "std")


@estimator(
    formula="R - mean of the group",
    paper="arXiv:2503.20783",
    known_as={
        "verl": "algorithm.adv_estimator=grpo, norm_adv_by_std_in_grpo=false",
        "TRL": "scale_rewards=none",
        "OpenRLHF": "--advantage_estimator dr_grpo",
        "SkyRL": "trainer.algorithm.grpo_norm_by_std=false",
        "prime-rl": "algo.type=grpo",
        "miles": "--advantage-estimator grpo, --disable-grpo-std-normalization",
        "slime": "--advantage-estimator grpo, --disable-grpo-std-normalization",
    },
)
def dr_grpo(batch: RewardBatch, *, singleton: Singleton = "zero") -> FixedTensor:
    """Group-relative advantages without the division (arXiv:2503.20783): ``grpo`` with ``scale="none"``.

    Dr.GRPO's other half is the aggregation mode ``constant``. For roles that play against each other (hierarchical
    GRPO), give each role of a comparison its own group id.

    Returns:
        [tokens], 0 at masked tokens.
    """
    return grpo(batch, scale="none", singleton=singleton)
