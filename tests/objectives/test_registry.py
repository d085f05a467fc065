"""The registry, and what an objective's class and configuration say about themselves."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from rollout_contract import objectives as obj
from rollout_contract.objectives import OBJECTIVES, Objective
from rollout_contract.objectives.registry import make_objective
from rollout_contract.schema.batch import RolloutBatch
from tests.objectives.batches import ALL, names


def leaves(kind: type[Objective]) -> set[type[Objective]]:
    """Every concrete objective of the package below a class."""
    below = {leaf for child in kind.__subclasses__() for leaf in leaves(child)}
    concrete = "name" in vars(kind) and kind.__module__.startswith("rollout_contract.objectives.")
    return below | ({kind} if concrete else set())


def test_no_objective_is_forgotten() -> None:
    assert set(OBJECTIVES.values()) == leaves(Objective)
    assert all(hasattr(obj, kind.__name__) for kind in OBJECTIVES.values())


@pytest.mark.parametrize("objective", ALL, ids=names)
def test_every_objective_documents_itself(objective: Objective) -> None:
    kind = type(objective)
    assert OBJECTIVES[kind.name] is kind
    assert kind.formula.isascii()
    assert kind.paper.startswith(("arXiv:", "https://"))
    assert isinstance(kind.known_as, dict)
    assert issubclass(kind.reads, RolloutBatch)
    assert kind.__doc__ is not None
    own = set(vars(kind).get("__annotations__", {})) & set(kind.model_fields)
    assert all(field in (kind.__doc__ or "") for field in own)


@pytest.mark.parametrize("objective", ALL, ids=names)
def test_objectives_are_frozen_values(objective: Objective) -> None:
    kind = type(objective)
    assert objective == kind()
    assert pickle.loads(pickle.dumps(objective)) == objective
    for field in kind.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(objective, field, 1.0)
    with pytest.raises(ValidationError, match="Extra inputs"):
        kind(no_such_option=1)


def test_an_objective_by_name() -> None:
    assert make_objective("ppo_clip", clip_high=0.28) == obj.PPOClip(clip_high=0.28)
    with pytest.raises(KeyError, match="no objective 'ppo'; there are: ppo_clip, gspo"):
        make_objective("ppo")


WRONG: list[tuple[type[Objective], dict[str, Any], str]] = [
    (obj.PPOClip, {"clip_low": -0.1}, "greater than or equal to 0"),
    (obj.PPOClip, {"dual_clip": 1.0}, "greater than 1"),
    (obj.PPOClip, {"ratio_cap": 0.9}, "greater than 1"),
    (obj.PPOClip, {"log_ratio_bound": 0.0}, "greater than 0"),
    (obj.CISPO, {"ratio_min": 2.0, "ratio_max": 1.0}, "no weight lies between"),
    (obj.RolloutIS, {"ratio_min": 1.1}, "less than 1"),
    (obj.RolloutIS, {"ratio_max": 0.9}, "greater than 1"),
    (obj.RolloutReinforce, {"weight_min": 3.0}, "above weight_max"),
    (obj.SAPO, {"tau_positive": 0.0}, "greater than 0"),
    (obj.SAPO, {"level": "word"}, "'token' or 'sequence'"),
    (obj.ClipCov, {"covariance_low": 5.0, "covariance_high": 1.0}, "no covariance lies between"),
    (obj.ClipCov, {"fraction": 0.0}, "greater than 0"),
    (obj.DRO, {"beta": 0.0}, "greater than 0"),
    (obj.TopEntropy, {"fraction": 1.5}, "less than or equal to 1"),
    (obj.OPSM, {"objective": None}, "instance of Objective"),
]


@pytest.mark.parametrize(("kind", "options", "message"), WRONG, ids=lambda x: getattr(x, "name", None))
def test_wrong_options_are_refused(kind: type[Objective], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        kind(**options)


def test_a_filtered_objective_keeps_its_options_when_it_is_written_down() -> None:
    filtered = obj.OPSM(objective=obj.GSPO(clip_low=0.1), delta=0.2)
    assert filtered.model_dump()["objective"]["clip_low"] == 0.1


def test_a_filter_consumes_weights_as_what_it_filters_does() -> None:
    assert obj.OPSM().correction == "multiplies"
    assert obj.OPSM(objective=obj.GMPO()).correction == "inside"
    assert obj.TopEntropy(objective=obj.RolloutCISPO()).correction == "refuses"
