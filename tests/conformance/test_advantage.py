"""Every advantage record of every system: values that miles, slime, verl, OpenRLHF, NeMo-RL, AReaL and SkyRL gave."""

from __future__ import annotations

import pytest

from tests.conformance.advantage_systems import ESTIMATORS
from tests.conformance.exact import exact_vectors
from tests.conformance.harness import Vector


@pytest.mark.parametrize("vector", exact_vectors("advantage"), ids=lambda vector: vector.id)
def test_advantage(vector: Vector) -> None:
    result = ESTIMATORS[vector.params["estimator"]](vector)
    assert not result.requires_grad
    vector.check(result)
