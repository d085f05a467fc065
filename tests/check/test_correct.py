"""Correct code gives no report: the library's own, and what trainers' users would write."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from rollout_contract.check import check
from rollout_contract.check.subjects import Subject, find

FOLDER = Path(__file__).parent / "correct"
STYLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
OWN = (
    "rollout_contract.objectives",
    "rollout_contract.kl",
    "rollout_contract.losses.value",
    "rollout_contract.losses.entropy",
    "rollout_contract.distillation.full",
    "rollout_contract.objectives.reverse_kl",
    "rollout_contract.distillation.advantages",
    "rollout_contract.corrections.truncate",
    "rollout_contract.corrections.icepop",
    "rollout_contract.corrections.m2po",
    "rollout_contract.advantages.grpo",
    "rollout_contract.advantages.gae",
    "rollout_contract.advantages.rloo",
    "rollout_contract.advantages.reinforce_plus_plus",
    "rollout_contract.kernels.kl",
    "rollout_contract.kernels.ratio",
    "rollout_contract.kernels.policy",
    "rollout_contract.kernels.segments",
    "rollout_contract.schemas",
)


def test_there_are_enough_of_them() -> None:
    modules = [*(f"tests.check.correct.{name}" for name in STYLES), "rollout_contract.objectives"]
    subjects = {item.name for module in modules for item in find(module) if isinstance(item, Subject)}
    assert len(subjects) >= 50


@pytest.mark.parametrize("target", [*(f"tests.check.correct.{name}" for name in STYLES), *OWN])
def test_no_false_report(target: str) -> None:
    importlib.import_module(target)
    report = check(target)
    assert report.faults == ()
    assert report.unchecked == ()
    assert report.checked
    assert report.exit_code == 0
