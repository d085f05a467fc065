"""Bypass mode beside verl's own: corrections that are made of the live policy, as constants."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from rollout_contract.errors import ContractError
from rollout_contract.integrations.verl import policy_losses
from rollout_contract.presets import OptionError
from tests.integrations.verl.inputs import AGG_MODES, GLOBAL, Options, options, random_inputs
from tests.integrations.verl.own import VERLS_OWN, actor_config, counted

OURS, OWN = policy_losses()["bypass_mode"], VERLS_OWN["bypass_mode"]
WEIGHTS: list[dict[str, Any]] = [
    {"rollout_is": None},
    {"rollout_is": "token", "rollout_is_threshold": 1.3},
    {"rollout_is": "token", "rollout_is_threshold": "0.8_1.25"},
    {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.6_1.8"},
    {"rollout_is": "token", "rollout_is_batch_normalize": True},
    {"rollout_is": "sequence", "rollout_is_batch_normalize": True},
]
REJECTIONS: list[dict[str, Any]] = [
    {},
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.4"},
    {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.05},
    {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": 1.6},
    {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.08},
    {"rollout_rs": "seq_max_k2,token_k3", "rollout_rs_threshold": "0.3,0.1"},
]
MISMATCH = [
    *("kl", "k3_kl", "chi2_token", "chi2_seq"),
    *("training_ppl", "training_log_ppl", "rollout_ppl", "rollout_log_ppl"),
    *("log_ppl_diff", "log_ppl_abs_diff", "ppl_ratio"),
]


@pytest.mark.parametrize("rejection", REJECTIONS, ids=lambda found: found.get("rollout_rs", "keep"))
@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda found: "-".join(map(str, found.values())))
@pytest.mark.parametrize("loss_type", ["reinforce", "ppo_clip"])
def test_value_and_gradient_are_verls(loss_type: str, weights: dict[str, Any], rejection: dict[str, Any]) -> None:
    config = actor_config(correction={"loss_type": loss_type, **weights, **rejection})
    for seed, (agg_mode, info) in enumerate(product(AGG_MODES, [{}, GLOBAL])):
        inputs = random_inputs(seed)
        value, gradient, _ = inputs.result(OURS, agg_mode, counted(config, info))
        expected, expected_gradient, _ = inputs.result(OWN, agg_mode, counted(config, info))
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


def test_metrics_are_verls() -> None:
    config = actor_config(correction={"loss_type": "ppo_clip", "rollout_is": "token"})
    inputs = random_inputs(3)
    # verl also counts rows without a trained token in its means over sequences.
    full = type(inputs)(*(v if v is None else v[inputs.response_mask.any(1)] for v in vars(inputs).values()))
    _, _, metrics = full.result(OURS, "token-mean", config)
    _, _, expected = full.result(OWN, "token-mean", config)
    for name in MISMATCH:
        assert metrics[f"rollout_corr/{name}"] == pytest.approx(expected[f"rollout_corr/{name}"], rel=1e-5), name
    for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"):
        assert metrics[f"actor/{name}"] == pytest.approx(expected[f"actor/{name}"], rel=1e-5, abs=1e-7), name
    assert all(isinstance(value, float) for value in metrics.values())


def test_the_gradient_of_the_report() -> None:
    """lp = [-1, -2], rollout = [-1.2, -1.5], A = 1, cap 2: with a live weight the gradient was [0, +.6065]."""
    config = actor_config(correction={"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0})
    inputs = random_inputs(0).__class__(
        old_log_prob=torch.tensor([[-1.2, -1.5]]),
        log_prob=torch.tensor([[-1.0, -2.0]]),
        advantages=torch.ones(1, 2),
        response_mask=torch.ones(1, 2),
    )
    _, gradient, _ = inputs.result(OURS, "token-sum", config)
    assert gradient[0].tolist() == pytest.approx([-1.2214, -0.6065], abs=1e-4)


def test_a_batch_without_a_trained_token_has_loss_zero() -> None:
    """verl raises there, which stops a run whose micro-batch holds nothing but padding."""
    inputs = random_inputs(0)
    nothing = type(inputs)(**{**vars(inputs), "response_mask": torch.zeros_like(inputs.response_mask)})
    value, gradient, _ = nothing.result(OURS, "token-mean", actor_config())
    assert value == 0.0
    assert not gradient.any()


def test_what_is_wrong_in_the_configuration() -> None:
    inputs = random_inputs(0)
    with pytest.raises(ContractError, match="rollout_correction"):
        inputs.result(OURS, "token-mean", options())
    wrong = options(policy_loss={"rollout_correction": Options(loss_type="vanilla")})
    with pytest.raises(ContractError, match="loss_type"):
        inputs.result(OURS, "token-mean", wrong)
    wrong = options(policy_loss={"rollout_correction": Options(rollout_rs="token_k9", rollout_rs_threshold=1.0)})
    with pytest.raises(OptionError, match="token_k9"):
        inputs.result(OURS, "token-mean", wrong)
