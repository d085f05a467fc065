"""The preset's correction makes, from log-probs, the importance ratios that TRL makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollout_contract.integrations.trl import ContractGRPOTrainer
from rollout_contract.integrations.trl.configuration import Configuration
from rollout_contract.integrations.trl.inputs import packed
from rollout_contract.integrations.trl.step import Forward, Window, bound_step
from rollout_contract.presets import preset
from tests.integrations.trl.world import Script, make_config, make_trainer, pretend_vllm

BOUNDS = [(None, 3.0), (0.3, 1.5), (0.5, None)]


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_same_ratios(mode: str, bounds: tuple[float | None, float | None], tmp_path: Path) -> None:
    low, high = bounds
    options: dict[str, Any] = {
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
    }
    config = make_config(tmp_path, **options)
    trainer = make_trainer(ContractGRPOTrainer, config, Script(scored=True, tools=True))
    pretend_vllm(trainer)
    inputs = trainer._prepare_inputs([{"prompt": "1 + 2 ="}] * 4)
    live = inputs["old_per_token_logps"].clone().requires_grad_()
    step: Any = bound_step(
        Configuration(config), inputs, Forward(live, live.exp()), Window(1, torch.tensor(9.0), False)
    )
    rule = preset("trl", {**options, "use_vllm": True}).correction
    assert rule is not None
    theirs = packed("correction_weights", inputs["importance_sampling_ratio"], step.layout)
    torch.testing.assert_close(rule(step).weights[step.loss_mask], theirs[step.loss_mask])
