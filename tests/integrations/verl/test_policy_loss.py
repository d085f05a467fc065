"""What the policy losses refuse, cut and count, without verl."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rollout_contract import settings
from rollout_contract.errors import (
    ContractError,
    CorrectionError,
    LiveGraphError,
    MetadataError,
    MissingFieldError,
    NoGraphError,
    NonFiniteError,
    ShapeError,
)
from rollout_contract.integrations.verl import as_policy_loss, policy_losses
from rollout_contract.objectives import OBJECTIVES, PPOClip, RolloutCISPO
from rollout_contract.presets import OptionError
from tests.integrations.verl.inputs import AGG_MODES, GLOBAL, Inputs, Options, options, random_inputs

LOSSES = policy_losses()
CONFIG = options(
    policy_loss={"dro_beta": 0.5, "rollout_correction": Options(loss_type="reinforce", rollout_is="token")}
)
FIXED = {"old_log_prob": "old_log_probs", "advantages": "advantages", "rollout_is_weights": "correction_weights"}


def live(inputs: Inputs, name: str) -> Inputs:
    return replace(inputs, **{name: getattr(inputs, name).clone().requires_grad_() * 1.0})


@pytest.mark.parametrize("name", ["old_log_prob", "advantages", "rollout_is_weights"])
@pytest.mark.parametrize("mode", LOSSES)
def test_a_live_fixed_input_is_cut(mode: str, name: str) -> None:
    inputs = random_inputs(0, weights=_takes_weights(mode), per_sample=True)
    if getattr(inputs, name) is None:
        return
    found = live(inputs, name).result(LOSSES[mode], "token-mean", CONFIG)
    torch.manual_seed(0)
    expected = inputs.result(LOSSES[mode], "token-mean", CONFIG)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", FIXED)
def test_or_refused_with_its_name(name: str) -> None:
    inputs = live(random_inputs(0, weights=True), name)
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        inputs.result(LOSSES["vanilla"], "token-mean", CONFIG)
    assert caught.value.field == FIXED[name]
    assert name in str(caught.value)


def test_an_old_policy_that_is_the_current_one_still_trains() -> None:
    """With both from one forward pass, and live, the ratio is 1 and the gradient of verl's own loss is zero."""
    log_prob = random_inputs(0).log_prob.clone().requires_grad_()
    mask, advantages = torch.ones_like(log_prob), torch.ones_like(log_prob)
    loss, _ = LOSSES["vanilla"](log_prob * 1.0, log_prob, advantages, mask, "token-sum", CONFIG)
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == (-advantages).tolist()


def _takes_weights(mode: str) -> bool:
    kind = OBJECTIVES.get({"gspo_sequence": "gspo"}.get(mode, mode))
    return kind is None or kind.correction != "refuses"


@pytest.mark.parametrize("mode", LOSSES)
def test_a_policy_without_a_graph_is_refused(mode: str) -> None:
    inputs = random_inputs(0, per_sample=True)
    arguments = (inputs.old_log_prob, inputs.log_prob, inputs.advantages, inputs.response_mask)
    with pytest.raises(NoGraphError, match="log_probs"):
        LOSSES[mode](*arguments, "token-mean", CONFIG)
    with torch.no_grad():
        LOSSES[mode](*arguments, "token-mean", CONFIG)


def test_weights_that_would_be_counted_twice_are_refused() -> None:
    with pytest.raises(CorrectionError):
        random_inputs(0, weights=True).result(as_policy_loss(RolloutCISPO()), "token-mean", CONFIG)


def test_other_faults_are_named() -> None:
    inputs = random_inputs(0, weights=True)
    function = LOSSES["vanilla"]
    with pytest.raises(ShapeError, match="advantages"):
        replace(inputs, advantages=inputs.advantages[:, :1]).result(function, "token-mean", CONFIG)
    wild = torch.where(inputs.response_mask, float("nan"), inputs.old_log_prob)
    with pytest.raises(NonFiniteError, match="old_log_prob"):
        replace(inputs, old_log_prob=wild).result(function, "token-mean", CONFIG)
    with pytest.raises(OptionError, match="dro_beta"):
        inputs.result(LOSSES["dro"], "token-mean", options())


@pytest.mark.parametrize("agg_mode", AGG_MODES)
def test_parts_of_a_global_batch_add_up(agg_mode: str) -> None:
    """With the counts of the whole, two micro-batches give the loss of one."""
    inputs = random_inputs(0)
    info: dict[str, Any] = {
        "dp_size": 1,
        "batch_num_tokens": int(inputs.response_mask.sum()),
        "global_batch_size": int(inputs.response_mask.any(1).sum()),
        "loss_scale_factor": 7,
    }
    whole = inputs.result(LOSSES["vanilla"], agg_mode, options())
    parts = [
        Inputs(*(None if v is None else v[rows] for v in vars(inputs).values())).result(
            LOSSES["vanilla"], agg_mode, options(global_batch_info=info)
        )
        for rows in (slice(0, 2), slice(2, 5))
    ]
    assert sum(part[0] for part in parts) == pytest.approx(whole[0], rel=1e-12)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), whole[1])


def test_counts_that_are_missing_or_modes_that_do_not_exist() -> None:
    inputs = random_inputs(0)
    for agg_mode, count in (("token-mean", "batch_num_tokens"), ("seq-mean-token-mean", "global_batch_size")):
        with pytest.raises(MissingFieldError, match=count):
            inputs.result(LOSSES["vanilla"], agg_mode, options(global_batch_info={"dp_size": 2}))
    with pytest.raises(MetadataError, match="loss_agg_mode"):
        inputs.result(LOSSES["vanilla"], "seq-mean", options())


@pytest.mark.parametrize("mode", LOSSES)
def test_a_batch_without_a_trained_token(mode: str) -> None:
    inputs = random_inputs(0, per_sample=True)
    nothing = replace(inputs, response_mask=torch.zeros_like(inputs.response_mask))
    for info in ({}, GLOBAL, {**GLOBAL, "batch_num_tokens": 0}):
        config = Options(**{**vars(CONFIG), "global_batch_info": info})
        value, gradient, metrics = nothing.result(LOSSES[mode], "token-mean", config)
        assert value == 0.0
        assert not gradient.any()
        assert all(torch.isfinite(torch.tensor(number)) for number in metrics.values())


def test_what_verl_cannot_hand_over_is_not_offered() -> None:
    offered = set(LOSSES)
    assert {"dppo", "cispo_rollout", "vespo", "gspo_sequence", "luspo", "opsm"} <= offered
    assert not offered & {"top_entropy", "optimal_advantage", "positive_nll"}
    with pytest.raises(ContractError):
        random_inputs(0).result(as_policy_loss(OBJECTIVES["optimal_advantage"](beta=1.0)), "token-mean", CONFIG)


def test_options_of_verl_decide_about_ours_too() -> None:
    inputs = random_inputs(0)
    tight = options(clip_ratio_low=0.01, clip_ratio_high=0.01)
    for mode in ("gspo_sequence", "dppo", "cispo_rollout", "opsm_proximal"):
        found = inputs.result(LOSSES[mode], "token-mean", tight)[0]
        assert found != inputs.result(LOSSES[mode], "token-mean", options())[0]


def test_a_fixed_objective_reads_no_option() -> None:
    inputs = random_inputs(0)
    function = as_policy_loss(PPOClip(clip_low=0.3, clip_high=0.3))
    assert function(inputs.old_log_prob, inputs.log_prob.requires_grad_(), inputs.advantages, inputs.response_mask,
                    "token-mean", options(clip_ratio_low=0.01))[0] == function(
        inputs.old_log_prob, inputs.log_prob, inputs.advantages, inputs.response_mask, "token-mean", options()
    )[0]  # fmt: skip
