"""Options outside their range are refused, by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollout_contract import errors
from rollout_contract.advantages import ESTIMATORS, LengthAdaptive, Whitening, gdpo
from tests.advantages.batches import make_case

BATCH = make_case(1, [2, 3], 1, "real").batch()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"scale": "std"}),
        ("grpo", {"eps": -1.0}),
        ("grpo", {"singleton": "nan"}),
        ("grpo", {"variance_floor": -1e-6}),
        ("rloo", {"singleton": "one"}),
        ("gpg", {"f_norm": 0.0}),
        ("pass_at_k", {"eps": -1.0}),
        ("gae", {"gamma": 1.01}),
        ("gae", {"lam": -0.1}),
        ("gae", {"value_lam": 2.0}),
        ("gae", {"masked": "reset"}),
        ("discounted_returns", {"masked": "ignore"}),
        ("reinforce_plus_plus", {"gamma": float("nan")}),
        ("optimal_token_baseline", {"positions": "padded"}),
        ("length_shaped_grpo", {"tool_token_cost": -1.0}),
        ("grpo", {"unknown": 1}),
    ],
)
def test_wrong_option(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        ESTIMATORS[name].function(BATCH, **options)


def test_wrong_configuration() -> None:
    with pytest.raises(ValidationError, match="alpha"):
        LengthAdaptive(alpha=0.0)
    with pytest.raises(ValidationError, match="epsilon_in"):
        Whitening(epsilon_in="everywhere")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="frozen"):
        Whitening().eps = 0.0


def test_weights_of_another_number_of_components() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        gdpo(BATCH, weights=[1.0])
    assert (caught.value.field, caught.value.expected) == ("weights", "2 weights, one for each component")
    assert caught.value.found == "1 weights"
