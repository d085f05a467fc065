"""verl's own actor loss, with a policy loss of ours selected by name in its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.workers.utils.losses import ppo_loss

from rollout_contract import settings
from rollout_contract.errors import LiveGraphError
from rollout_contract.integrations.verl import register
from tests.integrations.verl.inputs import AGG_MODES
from tests.integrations.verl.own import VERLS_OWN, actor_config

PROMPTS, RESPONSES = [2, 3, 1], [4, 2, 3]
WIDTH = 4


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    register()
    yield
    core_algos.POLICY_LOSS_REGISTRY.clear()
    core_algos.POLICY_LOSS_REGISTRY.update(VERLS_OWN)


def micro_batch(seed: int) -> tuple[TensorDict, torch.Tensor]:
    """What the engine hands to its loss function: jagged fields, and flat live log-probs of whole sequences."""
    generator = torch.Generator().manual_seed(seed)

    def rows(lengths: list[int]) -> list[torch.Tensor]:
        return [torch.randn(length, generator=generator) for length in lengths]

    def jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    live = torch.cat([-row.abs() for row in rows([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)])])
    fields: dict[str, Any] = {
        "prompts": jagged([torch.zeros(length, dtype=torch.long) for length in PROMPTS]),
        "responses": jagged([torch.zeros(length, dtype=torch.long) for length in RESPONSES]),
        "response_mask": jagged([torch.tensor([1, 1, 0, 1]), torch.ones(2).long(), torch.ones(3).long()]),
        "old_log_probs": jagged([-row.abs() for row in rows(RESPONSES)]),
        "advantages": jagged([torch.full((length,), 1.5 - i) for i, length in enumerate(RESPONSES)]),
        "rollout_is_weights": jagged([row.exp().clamp(max=2.0) for row in rows(RESPONSES)]),
        "ref_log_prob": jagged([-row.abs() for row in rows(RESPONSES)]),
    }
    data = TensorDict(fields, batch_size=len(PROMPTS))
    tensordict_utils.assign_non_tensor(
        data, dp_size=2, batch_num_tokens=23, global_batch_size=7, max_response_len=WIDTH
    )
    return data, live


def step(mode: str, agg_mode: str, **fields: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    config = actor_config(
        policy_loss={"loss_mode": mode},
        loss_agg_mode=agg_mode,
        loss_scale_factor=6,
        use_kl_loss=True,
        entropy_coeff=0.01,
    )
    data, values = micro_batch(3)
    for name, value in fields.items():
        data[name] = value
    live = values.requires_grad_()
    loss, metrics = ppo_loss(config, {"log_probs": live * 1.0, "entropy": live.detach().exp()}, data)
    loss.backward()
    assert live.grad is not None
    return loss.detach(), live.grad, metrics


@pytest.mark.parametrize("agg_mode", AGG_MODES)
@pytest.mark.parametrize("mode", VERLS_OWN)
def test_the_actors_loss_is_the_same_with_ours(mode: str, agg_mode: str) -> None:
    loss, gradient, metrics = step(f"contract_{mode}", agg_mode)
    expected, expected_gradient, expected_metrics = step(mode, agg_mode)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    shared = {"actor/pg_loss", "actor/entropy_loss", "kl_loss"}
    for name in shared:
        assert metrics[name].aggregate() == pytest.approx(expected_metrics[name].aggregate(), rel=1e-5, abs=1e-6)


def test_a_live_weight_in_the_data_is_cut_or_refused() -> None:
    leaf = micro_batch(3)[0]["rollout_is_weights"].clone().requires_grad_()
    loss, gradient, _ = step("contract_vanilla", "token-mean", rollout_is_weights=leaf)
    expected, expected_gradient, _ = step("vanilla", "token-mean")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert leaf.grad is None
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match="rollout_is_weights"):
        step("contract_vanilla", "token-mean", rollout_is_weights=leaf)
