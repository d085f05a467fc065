"""Every loss is selectable by name, in the way in which verl selects one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from verl.trainer.ppo import core_algos

from rollout_contract.integrations.verl import policy_losses, register, register_objective
from rollout_contract.objectives import GSPO
from tests.integrations.verl.inputs import AGG_MODES, random_inputs
from tests.integrations.verl.own import VERLS_OWN, actor_config

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """verl's registry is left as it was."""
    yield
    core_algos.POLICY_LOSS_REGISTRY.clear()
    core_algos.POLICY_LOSS_REGISTRY.update(VERLS_OWN)


def test_all_of_verls_modes_and_ours() -> None:
    registered = register()
    assert {f"contract_{mode}" for mode in VERLS_OWN} <= set(registered)
    assert len(registered) > len(VERLS_OWN) + 10
    for name in registered:
        assert core_algos.get_policy_loss_fn(name) is not None
    assert all(core_algos.get_policy_loss_fn(mode) is own for mode, own in VERLS_OWN.items())


def test_under_verls_own_names() -> None:
    register(prefix="")
    for mode, own in VERLS_OWN.items():
        assert core_algos.get_policy_loss_fn(mode) is not own


@pytest.mark.parametrize("name", sorted(set(policy_losses()) - set(VERLS_OWN)))
def test_ours_that_verl_lacks_train(name: str) -> None:
    register()
    function = core_algos.get_policy_loss_fn(f"contract_{name}")
    inputs = random_inputs(5, per_sample=True)
    for agg_mode in AGG_MODES:
        value, gradient, metrics = inputs.result(function, agg_mode, actor_config())
        assert torch.isfinite(torch.tensor(value))
        assert torch.isfinite(gradient).all()
        assert gradient.any()
        assert not gradient[~inputs.response_mask].any()
        assert all(isinstance(number, float) for number in metrics.values())


def test_an_objective_with_options_of_its_own() -> None:
    register_objective("gspo_tight", GSPO(clip_low=1e-3, clip_high=1e-3), agg_mode="seq-mean-token-mean")
    function = core_algos.get_policy_loss_fn("gspo_tight")
    inputs = random_inputs(5, per_sample=True)
    tight = inputs.result(function, "token-sum", actor_config())[0]
    assert tight == inputs.result(function, "token-mean", actor_config())[0]
    assert tight != inputs.result(policy_losses()["gspo_sequence"], "seq-mean-token-mean", actor_config())[0]


def test_verl_loads_a_module_that_registers(tmp_path: Path) -> None:
    """As in every worker process: ``VERL_USE_EXTERNAL_MODULES``."""
    (tmp_path / "my_losses.py").write_text("from rollout_contract.integrations.verl import register\n\nregister()\n")
    code = "from verl.trainer.ppo.core_algos import get_policy_loss_fn; print(get_policy_loss_fn('contract_dppo'))"
    environment = {"VERL_USE_EXTERNAL_MODULES": "my_losses", "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}", "PATH": ""}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "policy_loss_function" in found.stdout
