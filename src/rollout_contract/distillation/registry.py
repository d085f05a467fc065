"""Every form of distillation by its name; the advantage forms are in ``rollout_contract.advantages.ESTIMATORS``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollout_contract.distillation.sampled import (
    FrontLoadedReverseKL,
    RolloutReverseKL,
    SampledReverseKL,
    WeightedReverseKL,
)
from rollout_contract.distillation.term import DistributionTerm, FullVocabulary
from rollout_contract.distillation.topk import FlooredTopKDivergence, TopKDivergence, TopKReverseKL
from rollout_contract.objectives.base import Objective

_SAMPLED: tuple[type[Objective], ...] = (
    SampledReverseKL,
    WeightedReverseKL,
    RolloutReverseKL,
    FrontLoadedReverseKL,
)
_TERMS: tuple[type[DistributionTerm], ...] = (
    FullVocabulary,
    TopKDivergence,
    FlooredTopKDivergence,
    TopKReverseKL,
)

SAMPLED_OBJECTIVES: Mapping[str, type[Objective]] = MappingProxyType({kind.name: kind for kind in _SAMPLED})
"""Objectives of ``policy_loss`` on the sampled token, in the order of the documentation."""

DISTRIBUTION_TERMS: Mapping[str, type[DistributionTerm]] = MappingProxyType({kind.name: kind for kind in _TERMS})
"""Terms of ``distillation_loss``, in the order of the documentation."""
