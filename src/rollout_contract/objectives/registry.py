"""Every policy objective by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rollout_contract.objectives.base import Objective
from rollout_contract.objectives.cispo import CISPO, RolloutCISPO
from rollout_contract.objectives.covariance import ClipCov, KLCov
from rollout_contract.objectives.dppo import DPPO, ProbabilityMask, ProximalDPPO
from rollout_contract.objectives.dro import DRO
from rollout_contract.objectives.filtered import OPSM, ProximalOPSM, TopEntropy
from rollout_contract.objectives.gmpo import GMPO
from rollout_contract.objectives.gspo import GSPO, LUSPO, GSPOToken
from rollout_contract.objectives.importance_sampling import ImportanceSampling, OnPolicyRatio
from rollout_contract.objectives.likelihood import NLL, PositiveNLL
from rollout_contract.objectives.optimal_advantage import OptimalAdvantage
from rollout_contract.objectives.ppo_clip import PPOClip
from rollout_contract.objectives.product_clip import ProductClip
from rollout_contract.objectives.reinforce import GPG, Reinforce, RolloutReinforce
from rollout_contract.objectives.reverse_kl import (
    FrontLoadedReverseKL,
    RolloutReverseKL,
    SampledReverseKL,
    WeightedReverseKL,
)
from rollout_contract.objectives.rollout_is import RolloutIS
from rollout_contract.objectives.sapo import SAPO
from rollout_contract.objectives.topr import TOPR
from rollout_contract.objectives.vespo import VESPO

_ALL: tuple[type[Objective], ...] = (
    PPOClip,
    GSPO,
    GSPOToken,
    LUSPO,
    ProductClip,
    CISPO,
    RolloutCISPO,
    RolloutIS,
    SAPO,
    GMPO,
    VESPO,
    Reinforce,
    GPG,
    RolloutReinforce,
    TOPR,
    ImportanceSampling,
    OnPolicyRatio,
    DPPO,
    ProximalDPPO,
    ProbabilityMask,
    ClipCov,
    KLCov,
    DRO,
    OptimalAdvantage,
    NLL,
    PositiveNLL,
    OPSM,
    ProximalOPSM,
    TopEntropy,
    SampledReverseKL,
    WeightedReverseKL,
    RolloutReverseKL,
    FrontLoadedReverseKL,
)

OBJECTIVES: Mapping[str, type[Objective]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""Name -> objective class, in the order of the documentation."""


def make_objective(name: str, **options: Any) -> Objective:
    """An objective by its name, with the options of its class.

    Raises:
        KeyError: there is no objective of that name.
        pydantic.ValidationError: an option is unknown, out of range, or contradicts another.
    """
    if name not in OBJECTIVES:
        raise KeyError(f"no objective {name!r}; there are: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](**options)
