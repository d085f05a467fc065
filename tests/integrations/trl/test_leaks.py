"""Live inputs, through which plain TRL trains without a word: cut, or refused with the name of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rollout_contract import settings
from rollout_contract.errors import LiveGraphError
from rollout_contract.integrations.trl import ContractGRPOTrainer
from tests.integrations.trl.world import Script, make_config, make_trainer, pretend_vllm

# TRL's key, the field of the contract, and how a careless producer makes it of live log-probs of the policy.
LEAKS = {
    "old_per_token_logps": ("old_log_probs", lambda live, clean: live),
    "importance_sampling_ratio": ("correction_weights", lambda live, clean: clean * (live - live.detach()).exp()),
    "ref_per_token_logps": ("ref_log_probs", lambda live, clean: clean + live - live.detach()),
    "advantages": ("advantages", lambda live, clean: clean.unsqueeze(1) - (live - live.detach())),
    "sampling_per_token_logps": ("rollout_log_probs", lambda live, clean: clean + 0.0 * live),
}


def step_of(kind: type[GRPOTrainer], path: Path, reference: Path) -> tuple[Any, dict[str, Any]]:
    """A trainer, and the inputs of its first step, in which no value is off and no graph is live."""
    config = make_config(path, beta=0.1, vllm_importance_sampling_mode="token_truncate", num_iterations=2)
    trainer = make_trainer(kind, config, Script(scored=True), reference)
    pretend_vllm(trainer)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer, trainer._prepare_inputs([{"prompt": "1 + 2 ="}] * 4)


def leaking(trainer: Any, inputs: dict[str, Any], key: str) -> dict[str, Any]:
    """The same values, one of them with a graph."""
    tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    width = inputs["completion_ids"].size(1)
    live, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, tokens, mask, width)
    return {**inputs, key: LEAKS[key][1](live, inputs[key])}


def loss_and_gradient(trainer: Any, inputs: dict[str, Any]) -> tuple[float, list[Tensor]]:
    loss = trainer._compute_loss(trainer.model, inputs)
    return loss.item(), [part.clone() for part in torch.autograd.grad(loss, list(trainer.model.parameters()))]


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """How far one gradient is from the other, as a share of the other's size."""
    a, b = (torch.cat([part.flatten() for part in gradient]) for gradient in (ours, theirs))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("key", LEAKS)
def test_a_leak_is_cut(key: str, tmp_path: Path, reference_path: Path) -> None:
    plain, inputs = step_of(GRPOTrainer, tmp_path, reference_path)
    right_loss, right = loss_and_gradient(plain, inputs)

    wrong_loss, wrong = loss_and_gradient(plain, leaking(plain, inputs, key))
    assert wrong_loss == pytest.approx(right_loss, abs=1e-5), "TRL's loss does not show it"
    is_read_by_trl = key != "sampling_per_token_logps"
    assert (distance(wrong, right) > 0.1) == is_read_by_trl, "TRL's gradient is another one"

    ours, _ = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    loss, gradient = loss_and_gradient(ours, leaking(ours, inputs, key))
    assert loss == pytest.approx(right_loss, abs=1e-5)
    assert distance(gradient, right) < 1e-5


@pytest.mark.parametrize("key", LEAKS)
def test_a_leak_is_refused_by_name(key: str, tmp_path: Path, reference_path: Path) -> None:
    trainer, inputs = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as error:
        trainer._compute_loss(trainer.model, leaking(trainer, inputs, key))
    assert [violation.field for violation in error.value.violations] == [LEAKS[key][0]]
    assert f"(key {key} of TRL)" in str(error.value)
    assert "ContractGRPOTrainer breaks its contract" in str(error.value)


def test_a_clean_step_is_not_refused(tmp_path: Path, reference_path: Path) -> None:
    trainer, inputs = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    with settings(live_inputs="refuse"):
        loss_and_gradient(trainer, inputs)


class LiveOld:
    """Mixed into a trainer: somebody forgot ``torch.no_grad`` where the old log-probs are scored."""

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        scored = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return leaking(self, {**scored, "old_per_token_logps": scored["completion_ids"]}, "old_per_token_logps")


def test_plain_trl_runs_to_the_end_on_rounding_noise(tmp_path: Path) -> None:
    class Plain(LiveOld, GRPOTrainer):
        pass

    class Contract(LiveOld, ContractGRPOTrainer):
        pass

    trainers = [make_trainer(kind, make_config(tmp_path, max_steps=3), Script()) for kind in (Plain, Contract)]
    for trainer in trainers:
        trainer.train()
    plain, contract = trainers
    norms = [log["grad_norm"] for log in plain.state.log_history if "grad_norm" in log]
    assert len(norms) == 3
    assert max(norms) < 1e-6
    assert max(log["grad_norm"] for log in contract.state.log_history if "grad_norm" in log) > 0.1

    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match="old_per_token_logps"):
        make_trainer(Contract, make_config(tmp_path, max_steps=3), Script()).train()
