"""Every objective of the registry on batches that break careless code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import policy_loss, settings
from rollout_contract.objectives import Objective
from tests.objectives.batches import ALL, bind, live_log_probs, make_step, names

every_objective = pytest.mark.parametrize("objective", ALL, ids=names)
bounded_objectives = pytest.mark.parametrize(
    "objective", [o for o in ALL if "log_ratio_bound" in type(o).model_fields and o.name != "vespo"], ids=names
)
splittable_objectives = pytest.mark.parametrize("objective", [o for o in ALL if not o.batch_statistics], ids=names)


def fixed_fields(step: Any) -> dict[str, Tensor]:
    """Copies of what the schema requires."""
    plan = type(step).__plan__
    return {name: getattr(step, name).clone() for name, spec in plan.items() if spec.is_tensor and spec.required}


def rebuilt(step: Any, fields: dict[str, Tensor]) -> Any:
    return type(step)(response_lengths=step.response_lengths, **fields).weighted("seq-mean-token-mean")


def scaled_scores(step: Any, factor: float) -> Any:
    """The step with every second token's scores multiplied."""
    fields = fixed_fields(step)
    for name in fields:
        if name.endswith("log_probs"):
            fields[name][1::2] *= factor
    return rebuilt(step, fields)


def value_and_gradient(objective: Objective, step: Any, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    loss = policy_loss(bind(step, log_probs), objective)
    (gradient,) = torch.autograd.grad(loss.value, log_probs)
    return loss.value.detach(), gradient


@every_objective
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1]], ids=str)
def test_tiny_batches(objective: Objective, lengths: list[int]) -> None:
    step = make_step(objective.reads, lengths=lengths)
    value, gradient = value_and_gradient(objective, step, live_log_probs(step))
    assert value.isfinite()
    assert gradient.shape == (sum(lengths),)
    assert gradient.isfinite().all()


@every_objective
def test_all_masked_is_zero_with_a_graph(objective: Objective) -> None:
    step = make_step(objective.reads)
    masked = rebuilt(step, fixed_fields(step) | {"loss_mask": torch.zeros_like(step.loss_mask)})
    value, gradient = value_and_gradient(objective, masked, live_log_probs(step))
    assert value == 0.0
    assert (gradient == 0.0).all()


@every_objective
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 1e30, -1e30])
def test_masked_garbage_is_invisible_to_the_bit(objective: Objective, garbage: float) -> None:
    step = make_step(objective.reads)
    mask, fields = step.loss_mask, fixed_fields(step)
    per_token = [n for n in fields if type(step).__plan__[n].axis == "tokens" and n != "loss_mask"]
    soiled = rebuilt(step, fields | {name: fields[name].where(mask, garbage) for name in per_token})
    clean_log_probs = live_log_probs(step)
    dirty_log_probs = clean_log_probs.detach().where(mask, garbage).requires_grad_()
    clean = value_and_gradient(objective, step, clean_log_probs)
    found = value_and_gradient(objective, soiled, dirty_log_probs)
    assert torch.equal(clean[0], found[0])
    assert torch.equal(clean[1], found[1])
    assert (found[1][~mask] == 0).all()


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [40.0, 1e3, 1e6])
def test_huge_ratios_stay_finite(objective: Objective, dtype: torch.dtype, scale: float) -> None:
    """Log-ratios of both signs far beyond what exp can take: no loss, gradient or metric is NaN or infinite."""
    step = make_step(objective.reads, dtype=dtype)
    log_probs = live_log_probs(step).detach().to(dtype) - 0.1
    log_probs[::2] *= scale
    for batch in (step, scaled_scores(step, scale)):
        leaf = log_probs.clone().requires_grad_()
        loss = policy_loss(bind(batch, leaf), objective)
        (gradient,) = torch.autograd.grad(loss.value, leaf)
        assert loss.value.isfinite()
        assert gradient.isfinite().all()
        assert all(map(math.isfinite, loss.metrics.compute().values()))


@bounded_objectives
def test_without_a_bound_it_is_still_finite(objective: Objective) -> None:
    """None leaves only the range of the dtype: a ratio never becomes infinite, nor A = 0 times it NaN."""
    unbounded = objective.model_copy(update={"log_ratio_bound": None})
    step = make_step(objective.reads, dtype=torch.float32)
    fields = fixed_fields(step)
    if "advantages" in fields:
        fields["advantages"] = torch.zeros_like(fields["advantages"])
    for name in fields:
        if name.endswith("log_probs"):
            fields[name] -= 1e4
    log_probs = live_log_probs(step).detach().float().requires_grad_()
    value, gradient = value_and_gradient(unbounded, rebuilt(step, fields), log_probs)
    assert value.isfinite()
    assert gradient.isfinite().all()


@every_objective
def test_loss_has_the_dtype_of_the_log_probs(objective: Objective) -> None:
    for dtype in (torch.float32, torch.float64):
        step = make_step(objective.reads)
        log_probs = live_log_probs(step).detach().to(dtype).requires_grad_()
        value, gradient = value_and_gradient(objective, step, log_probs)
        assert value.dtype == gradient.dtype == dtype


@every_objective
def test_metrics_are_detached(objective: Objective) -> None:
    step = make_step(objective.reads)
    loss = policy_loss(bind(step, live_log_probs(step)), objective)
    assert all(metric.parts.grad_fn is None and not metric.parts.requires_grad for metric in loss.metrics.values())


@splittable_objectives
def test_a_split_changes_nothing(objective: Objective) -> None:
    step = make_step(objective.reads)
    log_probs = live_log_probs(step)
    whole, whole_gradient = value_and_gradient(objective, step, log_probs)
    parts = step.split(samples=1)
    rows = log_probs.split([part.layout.num_tokens for part in parts])
    losses = [policy_loss(bind(part, row), objective) for part, row in zip(parts, rows, strict=True)]
    total = sum(losses[1:], losses[0])
    torch.testing.assert_close(total.value.detach(), whole)
    torch.testing.assert_close(torch.autograd.grad(total.value, log_probs)[0], whole_gradient)


@every_objective
def test_fixed_fields_get_no_gradient(objective: Objective) -> None:
    """Also with every check off: a live fixed input never receives a gradient."""
    with settings(level="off"):
        step = make_step(objective.reads)
        live = {n: value.requires_grad_() for n, value in fixed_fields(step).items() if n != "loss_mask"}
        batch = rebuilt(step, {**live, "loss_mask": step.loss_mask})
        log_probs = live_log_probs(step)
        policy_loss(bind(batch, log_probs), objective).backward()
        assert log_probs.grad is not None
        assert all(tensor.grad is None for tensor in live.values())
