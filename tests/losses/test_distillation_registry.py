"""Every form of distillation is in a registry, with what its documentation needs."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_contract import distillation
from rollout_contract.advantages import ESTIMATORS
from rollout_contract.distillation import DISTRIBUTION_TERMS
from rollout_contract.distillation.term import DistributionTerm
from rollout_contract.objectives import OBJECTIVES, Objective
from rollout_contract.schema.batch import RolloutBatch

ENTRIES = [*DISTRIBUTION_TERMS.items()]


def test_no_form_is_forgotten() -> None:
    public = {value for value in vars(distillation).values() if isinstance(value, type)}
    assert {kind for kind in public if issubclass(kind, Objective)} <= set(OBJECTIVES.values())
    assert {kind for kind in public if issubclass(kind, DistributionTerm)} == set(DISTRIBUTION_TERMS.values())
    assert {"opd_advantages", "reverse_kl_advantages", "minillm_advantages"} <= set(ESTIMATORS)


@pytest.mark.parametrize(("name", "kind"), ENTRIES)
def test_an_entry_is_documented(name: str, kind: Any) -> None:
    assert kind.name == name
    assert all((kind.formula, kind.paper, kind.known_as, kind.__doc__))
    assert issubclass(kind.reads, RolloutBatch)
    assert kind() == kind()
