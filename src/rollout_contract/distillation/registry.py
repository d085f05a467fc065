"""Every term of ``distillation_loss`` by its name.

The forms on the sampled token are in ``rollout_contract.objectives.OBJECTIVES``, those in the advantages in
``rollout_contract.advantages.ESTIMATORS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollout_contract.distillation.term import DistributionTerm, FullVocabulary
from rollout_contract.distillation.topk import FlooredTopKDivergence, TopKDivergence, TopKReverseKL

_TERMS: tuple[type[DistributionTerm], ...] = (
    FullVocabulary,
    TopKDivergence,
    FlooredTopKDivergence,
    TopKReverseKL,
)

DISTRIBUTION_TERMS: Mapping[str, type[DistributionTerm]] = MappingProxyType({kind.name: kind for kind in _TERMS})
"""Terms of ``distillation_loss``, in the order of the documentation."""
