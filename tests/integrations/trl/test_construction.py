"""What a trainer refuses, or doubts, before anything is loaded or generated."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import trl
from accelerate import Accelerator
from trl import GRPOTrainer

from rollout_contract.integrations.trl import ContractGRPOTrainer, configuration
from rollout_contract.presets import OptionError
from tests.integrations.trl.world import Script, make_config, make_trainer, sevens

REFUSED: dict[str, dict[str, Any]] = {
    "use_adaptive_entropy": {"use_adaptive_entropy": True},
    "top_entropy_quantile": {"top_entropy_quantile": 0.0},
    "entropy_coef": {"top_entropy_quantile": 0.5, "entropy_coef": 0.1},
    "delta": {"loss_type": "sapo", "delta": 1.5},
    "importance_sampling_level": {"loss_type": "cispo", "importance_sampling_level": "sequence"},
    "max_completion_length": {"loss_type": "dr_grpo", "max_completion_length": None},
    "loss_type": {"loss_type": "reinforce"},
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_is_not_covered(option: str, tmp_path: Path) -> None:
    """It is refused although the model cannot be loaded either."""
    config = make_config(tmp_path, **REFUSED[option])
    with pytest.raises(OptionError) as error:
        ContractGRPOTrainer("no/such-model", sevens, config)
    assert error.value.field == option


def test_an_option_of_a_later_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may decide about the loss: nobody knows."""
    known = configuration.options_of(make_config(tmp_path))
    assert {"loss_type", "beta", "epsilon", "delta", "use_vllm", "steps_per_generation"} <= known.keys()
    assert not {"learning_rate", "output_dir"} & known.keys()
    monkeypatch.setattr(configuration, "options_of", lambda args: {**known, "new_loss_coef": 0.5})
    with pytest.raises(OptionError, match="new_loss_coef"):
        make_trainer(ContractGRPOTrainer, make_config(tmp_path), Script())


def test_options_that_hold_mappings_are_none_of_the_loss(tmp_path: Path) -> None:
    config = make_config(tmp_path, generation_kwargs={"top_p": 0.9}, model_init_kwargs={"dtype": "float32"})
    assert configuration.Configuration(config).loss_type == "dapo"


def test_the_configuration_decides(tmp_path: Path) -> None:
    config = make_config(tmp_path, loss_type="grpo", epsilon=0.1, epsilon_high=0.3, entropy_coef=0.2)
    trainer = make_trainer(ContractGRPOTrainer, config, Script())
    assert isinstance(trainer, GRPOTrainer)
    objective = trainer.configuration.objective
    assert (objective.name, objective.clip_low, objective.clip_high) == ("ppo_clip", 0.1, 0.3)
    assert trainer.configuration.entropy_coefficient == 0.2


def test_a_quantile_over_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(ContractGRPOTrainer, make_config(tmp_path, top_entropy_quantile=0.5), Script())
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(OptionError, match="top_entropy_quantile"):
        trainer._refuse_other_ranks(trainer.args)


def test_a_trl_that_was_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", "2.0.0")
    with pytest.warns(UserWarning, match=r"compared with TRL 1\.16\.x; this is 2\.0\.0"):
        make_trainer(ContractGRPOTrainer, make_config(tmp_path), Script())


@pytest.mark.parametrize(("use_vllm", "corrects", "count"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_a_sampler_over_a_part_of_the_vocabulary(tmp_path: Path, use_vllm: bool, corrects: bool, count: int) -> None:
    config = make_config(tmp_path, use_vllm=use_vllm, top_p=0.9, top_k=20, vllm_importance_sampling_correction=corrects)
    from rollout_contract.integrations.trl.trainer import _doubts

    assert len(_doubts(config)) == count
    assert all("top_p=0.9, top_k=20" in message for message in _doubts(config))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "rollout_contract.integrations.trl")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rollout-contract\[trl\]'"):
        importlib.import_module("rollout_contract.integrations.trl")
