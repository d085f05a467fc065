"""Value and gradient of each of verl's policy losses, beside verl's own, on random batches."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from rollout_contract.integrations.verl import policy_losses
from tests.integrations.verl.inputs import AGG_MODES, GLOBAL, random_inputs
from tests.integrations.verl.own import VERLS_OWN, actor_config, counted

MODES = [mode for mode in VERLS_OWN if mode != "bypass_mode"]
COMPARED = {
    "vanilla": {"pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"},
    "geo_mean": {"ppo_kl"},
    "gpg": set[str](),
    "kl_cov": {"ppo_kl"},
    "sapo": {"ppo_kl"},
    "dro": {"ppo_kl"},
}
"""Metrics that both report; elsewhere those of the default."""
OURS = policy_losses()


def test_verl_registers_what_is_tested_here() -> None:
    known = "vanilla gspo cispo sapo geo_mean gpg clip_cov kl_cov dppo_tv dppo_kl dro bypass_mode"
    assert set(VERLS_OWN) == set(known.split())


@pytest.mark.parametrize("agg_mode", AGG_MODES)
@pytest.mark.parametrize("mode", MODES)
def test_value_and_gradient_are_verls(mode: str, agg_mode: str) -> None:
    config = actor_config()
    for seed, weights, info in product(range(4), [False, True], [{}, GLOBAL]):
        inputs = random_inputs(seed, weights=weights, per_sample=mode == "geo_mean" or seed == 3)
        both = [inputs.result(table[mode], agg_mode, counted(config, info)) for table in (OURS, VERLS_OWN)]
        (value, gradient, metrics), (expected, expected_gradient, expected_metrics) = both
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)
        for name in COMPARED.get(mode, {"pg_clipfrac", "ppo_kl"}):
            assert metrics[f"actor/{name}"] == pytest.approx(expected_metrics[f"actor/{name}"], rel=1e-5, abs=1e-7), (
                name
            )


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("mode", MODES)
def test_masks_of_any_dtype(mode: str, mask_dtype: torch.dtype) -> None:
    inputs = random_inputs(7, per_sample=True, mask_dtype=mask_dtype)
    value, gradient, _ = inputs.result(OURS[mode], "token-mean", actor_config())
    expected, expected_gradient, _ = inputs.result(VERLS_OWN[mode], "token-mean", actor_config())
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_float32_as_in_training(mode: str) -> None:
    inputs = random_inputs(11, weights=True, per_sample=True)
    single = type(inputs)(*(value.float() if value.is_floating_point() else value for value in vars(inputs).values()))
    value, gradient, _ = single.result(OURS[mode], "seq-mean-token-mean", actor_config())
    expected, expected_gradient, _ = single.result(VERLS_OWN[mode], "seq-mean-token-mean", actor_config())
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_masked_positions_are_not_read(mode: str) -> None:
    """With garbage there, ours gives what verl gives without it."""
    inputs = random_inputs(13, weights=True, per_sample=True)
    value, gradient, _ = inputs.with_garbage().result(OURS[mode], "token-mean", actor_config())
    expected, expected_gradient, _ = inputs.result(VERLS_OWN[mode], "token-mean", actor_config())
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_on_policy(mode: str) -> None:
    """The first update after the scores were made: every ratio is 1."""
    inputs = random_inputs(17, per_sample=True, spread=0.0)
    value, gradient, _ = inputs.result(OURS[mode], "token-mean", actor_config())
    expected, expected_gradient, _ = inputs.result(VERLS_OWN[mode], "token-mean", actor_config())
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


def test_clip_cov_drops_as_many_tokens_as_verl() -> None:
    """Which ones is drawn at random."""
    config = actor_config(policy_loss={"clip_cov_ratio": 0.2})
    for seed in range(5):
        inputs = random_inputs(seed)
        _, gradient, metrics = inputs.result(OURS["clip_cov"], "token-mean", config)
        _, _, expected = inputs.result(VERLS_OWN["clip_cov"], "token-mean", config)
        assert metrics["actor/pg_clipfrac"] == pytest.approx(expected["actor/pg_clipfrac"], abs=1e-7)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("vanilla", {"clip_ratio": 0.1, "clip_ratio_low": None, "clip_ratio_high": None}),
        ("vanilla", {"clip_ratio": 0.1, "clip_ratio_low": None}),
        ("gspo", {"clip_ratio_low": 0.02, "clip_ratio_high": 0.03}),
        ("sapo", {"tau_pos": 0.7, "tau_neg": 1.6}),
        ("cispo", {"clip_ratio_low": 0.5, "clip_ratio_high": 0.05}),
        ("dppo_tv", {"clip_ratio_low": 0.01, "clip_ratio_high": 0.02, "clip_ratio_c": 1.05}),
        ("dppo_kl", {"clip_ratio_low": 0.005, "clip_ratio_high": 0.01, "clip_ratio_c": 20.0}),
    ],
)
def test_verls_options_decide(mode: str, changes: dict[str, Any]) -> None:
    config = actor_config(**changes)
    inputs = random_inputs(19)
    value, gradient, _ = inputs.result(OURS[mode], "token-mean", config)
    expected, expected_gradient, _ = inputs.result(VERLS_OWN[mode], "token-mean", config)
    assert value == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)
    plain, _, _ = inputs.result(OURS[mode], "token-mean", actor_config())
    assert value != pytest.approx(plain, rel=1e-6)
