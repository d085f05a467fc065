"""What appears in TRL's logs: TRL's names with TRL's numbers, and the library's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rollout_contract import metrics
from rollout_contract.integrations.trl import ContractGRPOTrainer
from rollout_contract.integrations.trl.observe import Pending
from rollout_contract.metrics import Metrics
from tests.integrations.trl.world import Script, make_config, make_trainer, pretend_vllm


def logged(kind: type[GRPOTrainer], path: Path, **options: Any) -> list[dict[str, float]]:
    config = make_config(path, max_steps=6, num_iterations=2, gradient_accumulation_steps=2, **options)
    trainer = make_trainer(kind, config, Script(scored=True))
    pretend_vllm(trainer)
    trainer.train()
    found: list[dict[str, float]] = trainer.state.log_history[:-1]
    return found


@pytest.mark.parametrize("loss_type", ["grpo", "cispo", "vespo"])
def test_names_and_numbers_of_trl(loss_type: str, tmp_path: Path) -> None:
    """Averages over six micro-batches, as TRL takes them."""
    options = {"loss_type": loss_type, "vllm_importance_sampling_mode": "token_truncate", "logging_steps": 3}
    theirs, ours = (logged(kind, tmp_path, **options) for kind in (GRPOTrainer, ContractGRPOTrainer))
    assert len(theirs) == len(ours) == 2
    for his, mine in zip(theirs, ours, strict=True):
        own = {name for name in mine if name.startswith("contract/")}
        assert mine.keys() - own == his.keys()
        expected = {name: value for name, value in his.items() if name != "step_time"}
        assert {name: mine[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_what_the_library_adds(tmp_path: Path) -> None:
    (first, *_) = logged(ContractGRPOTrainer, tmp_path, vllm_importance_sampling_mode="token_mask")
    own = {name.removeprefix("contract/") for name in first if name.startswith("contract/")}
    assert {"approx_kl", "log_ratio_max", "clip_fraction", "mismatch/k1", "mismatch/ess", "mismatch/unscored"} <= own
    assert "policy_loss" not in own, "a sum over micro-batches is not an average"


def test_pending_keeps_some_apart_and_merges_others() -> None:
    """Two micro-batches of one and of three tokens: TRL's mean of means, and the mean over tokens."""
    pending = Pending()
    for values in (torch.tensor([1.0]), torch.tensor([3.0, 3.0, 3.0])):
        found = Metrics({"x": metrics.mean(values, torch.ones_like(values, dtype=torch.bool))})
        pending.add(found, found.prefixed("merged"))
    assert pending.take(over_ranks=False) == [("x", 1.0), ("x", 3.0), ("merged/x", 2.5)]
    assert pending.take(over_ranks=False) == []


def test_an_extreme_of_nothing_is_no_number() -> None:
    """TRL leaves NaN out of its averages."""
    pending = Pending()
    pending.add(Metrics({"low": metrics.minimum(torch.ones(1), torch.zeros(1, dtype=torch.bool))}), Metrics())
    ((name, value),) = pending.take(over_ranks=False)
    assert name == "low"
    assert value != value
