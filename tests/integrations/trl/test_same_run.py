"""Two trainers that differ in one class name: after 20 steps their weights and their logs are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rollout_contract.integrations.trl import ContractGRPOTrainer
from tests.integrations.trl.world import Script, make_config, make_trainer, pretend_vllm

RUNS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "grpo, several updates per generation": {"loss_type": "grpo", "num_iterations": 2, "steps_per_generation": 4},
    "dapo, kl, accumulation, truncated masked": {
        "beta": 0.02,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "epsilon_high": 0.28,
        "mask_truncated_completions": True,
    },
    "gspo, entropy bonus": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "num_iterations": 3,
        "entropy_coef": 0.01,
    },
    "cispo, top entropy": {
        "loss_type": "cispo",
        "epsilon_high": 2.0,
        "top_entropy_quantile": 0.5,
        "steps_per_generation": 2,
    },
}
NOT_OF_THE_LOSS = ("step_time", "runtime", "per_second", "flos")


def run(kind: type[GRPOTrainer], path: Path, script: Script | None, options: dict[str, Any], **more: Any) -> Any:
    options = {"max_steps": 20, "learning_rate": 2e-3} | options
    trainer = make_trainer(kind, make_config(path, **options), script, more.get("reference"))
    if more.get("vllm"):
        pretend_vllm(trainer)
    trainer.train()
    return trainer


def assert_same_run(theirs: Any, ours: Any, path: Path) -> None:
    start = make_trainer(GRPOTrainer, make_config(path), Script()).model.parameters()
    moved = 0.0
    for old, his, mine in zip(start, theirs.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(mine, his, rtol=0.0, atol=1e-4)
        moved = max(moved, float((his - old).detach().abs().max()))
    assert moved > 1e-2
    for his, mine in zip(theirs.state.log_history, ours.state.log_history, strict=True):
        names = [name for name in his if not any(part in name for part in NOT_OF_THE_LOSS)]
        expected = {name: his[name] for name in names}
        assert {name: mine[name] for name in names} == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_20_steps(name: str, tmp_path: Path, reference_path: Path) -> None:
    theirs, ours = (
        run(kind, tmp_path, Script(tools=True), RUNS[name], reference=reference_path)
        for kind in (GRPOTrainer, ContractGRPOTrainer)
    )
    assert_same_run(theirs, ours, tmp_path)


def test_20_steps_of_generation(tmp_path: Path) -> None:
    theirs, ours = (run(kind, tmp_path, None, {}) for kind in (GRPOTrainer, ContractGRPOTrainer))
    assert_same_run(theirs, ours, tmp_path)


def test_20_steps_with_a_sampler_of_its_own(tmp_path: Path) -> None:
    options = {"vllm_importance_sampling_mode": "token_truncate"}
    theirs, ours = (
        run(kind, tmp_path, Script(scored=True), options, vllm=True) for kind in (GRPOTrainer, ContractGRPOTrainer)
    )
    assert_same_run(theirs, ours, tmp_path)
