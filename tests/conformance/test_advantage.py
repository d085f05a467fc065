"""Every advantage record of every system: values that miles, slime, verl, OpenRLHF, NeMo-RL, AReaL and SkyRL gave."""

from __future__ import annotations

import pytest

from tests.conformance.advantage_systems import ESTIMATORS
from tests.conformance.harness import Vector, vectors


@pytest.mark.parametrize("vector", vectors("advantage"), ids=lambda vector: vector.id)
def test_advantage(vector: Vector) -> None:
    result = ESTIMATORS[vector.params["estimator"]](vector)
    assert not result.requires_grad
    vector.check(result)
