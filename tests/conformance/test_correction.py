"""Corrections give the weights, masks, losses and gradients that the trainers give."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from rollout_contract.corrections import Truncate
from rollout_contract.losses.policy import policy_loss
from tests.conformance.correction_rules import (
    areal_rule,
    loss_correction,
    loss_objective,
    mask_rule,
    opsm_keep,
    weight_rule,
)
from tests.conformance.harness import Vector, vectors
from tests.conformance.rollout_steps import aggregation_of, mask_of, step_of, tensor_of

NEGATIVE_WEIGHTS = """AReaL's action "clamp" clamps the weight to the bounds of the metric, whatever the metric is; a
bound of k1 may be negative, and so is then the weight, which turns the gradient around. The library refuses it."""
FAULTS = {
    "areal/correction/decoupled/sequence/clamp/kl_k1/mean": NEGATIVE_WEIGHTS,
    "areal/correction/decoupled/sequence/clamp/kl_k1/sum": NEGATIVE_WEIGHTS,
    "areal/correction/decoupled/sequence/clamp/kl_k1/max": NEGATIVE_WEIGHTS,
    "areal/correction/decoupled/token/clamp/kl_k1": NEGATIVE_WEIGHTS,
}
"""Records of a fault, which the library refuses to reproduce where the parameters provoke it."""


@pytest.mark.parametrize("vector", vectors("correction"), ids=lambda vector: vector.id)
def test_correction(vector: Vector) -> None:
    if vector.id in FAULTS and vector.params["correction"]["high"] <= 0:
        with pytest.raises(ValidationError, match="greater than 0"):
            areal_rule(vector.params["correction"])
        return
    what = vector.params.get("what", "loss")
    {"loss": check_loss, "opsm_mask": check_opsm}.get(what, check_correction)(vector)


# -- losses --------------------------------------------------------------------------------------------------------


def check_loss(vector: Vector) -> None:
    step = step_of(vector)
    mask = mask_of(vector, tensor_of(vector, "logprob").shape)
    if "correction" in vector.params:
        step = step.corrected(loss_correction(vector, step))
    step = step.weighted(aggregation_of(vector.params, mask))
    live = tensor_of(vector, "logprob").requires_grad_()
    loss = policy_loss(step.bind(log_probs=live.reshape(-1)), loss_objective(vector))
    loss.backward()
    vector.check(loss.value, live.grad)


# -- weights and masks ---------------------------------------------------------------------------------------------


def check_correction(vector: Vector) -> None:
    params = vector.params
    if params.get("form") == "live_over_old":
        # The current policy at the start of an update stands where the trainer's scores do, the old one samples.
        step = step_of(vector, old_log_probs=tensor_of(vector, "logprob"), rollout_log_probs=tensor_of(vector, "old"))
        found = Truncate(high=params["high"], log_ratio_bound=params["log_clamp"])(step).weights
    elif params["what"] == "weights":
        found = weight_rule(params)(step_of(vector)).weights
    else:
        found = mask_rule(params)(step_of(vector)).mask
    assert found is not None
    vector.check(found.reshape(next(tensor_of(vector, role) for role in vector.roles).shape))


def check_opsm(vector: Vector) -> None:
    vector.check(opsm_keep(vector).to(torch.float64))
