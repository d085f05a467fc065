"""What holds for every loss, whatever its formula: the list of objectives is the registry's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import ContractError
from rollout_contract.corrections import Correction
from rollout_contract.losses.loss import Loss
from rollout_contract.metrics import Metrics
from rollout_contract.roles import Role
from tests.properties.batches import Case, make_case
from tests.properties.setups import Setup, Tensors, setup
from tests.properties.subjects import CALCULATIONS, LATE, LOSSES, Calculation, LossSubject

T, F = True, False
GROUPED = [[T, T, F, T], [T, F], [], [T, T, T], [F, F, F], [T]]
CASES = [
    make_case(1, GROUPED, [0, 1, 1, 0, 0, 2], spread=0.3),
    make_case(2, GROUPED, [5, 5, 5, 5, 5, 5], spread=25.0, advantages="samples", rewards="binary"),
]
GARBAGE = [math.nan, math.inf, -math.inf, 1e30]

every_loss = pytest.mark.parametrize("subject", LOSSES, ids=lambda subject: subject.name)
every_calculation = pytest.mark.parametrize("subject", [*CALCULATIONS, *LATE], ids=lambda subject: subject.name)


# -- running a loss ----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    value: Tensor
    gradients: Tensors
    metrics: Metrics


def correction_for(batch: Any) -> Correction:
    """Weights between 0.5 and 1.5, whatever the batch."""
    weights = 1.0 + 0.5 * torch.arange(batch.layout.num_tokens, dtype=torch.float64).sin()
    return Correction(batch, weights=weights)


def step_of(subject: LossSubject, made: Setup, weights: Tensor | None = None) -> Any:
    step = made.build()
    if subject.corrected:
        step = step.corrected(correction_for(step) if weights is None else Correction(step, weights=weights))
    return step.weighted("seq-mean-token-mean")


def run(subject: LossSubject, batch: Any) -> Loss:
    torch.manual_seed(0)
    return subject.run(batch)


def outcome(subject: LossSubject, made: Setup, weights: Tensor | None = None) -> Outcome:
    live = made.live()
    loss = run(subject, step_of(subject, made, weights).bind(**live))
    loss.value.backward()
    return Outcome(loss.value.detach(), gradients_of(live), loss.metrics)


def gradients_of(live: Tensors) -> Tensors:
    found = {name: tensor.grad for name, tensor in live.items() if tensor.requires_grad}
    assert all(gradient is not None for gradient in found.values()), "a trainable field got no gradient at all"
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def assert_same_bits(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.dtype == expected.dtype, what
    # NaN cannot be in a result: nothing unmasked is NaN.
    assert torch.equal(found, expected), f"{what}: {found.tolist()} is not {expected.tolist()}"


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * max(scale, 1.0), msg=lambda m: f"{what}: {m}")


def assert_metrics_near(found: Metrics, expected: Metrics) -> None:
    assert list(found) == list(expected)
    numbers, wanted = found.compute(), expected.compute()
    for name, number in wanted.items():
        assert numbers[name] == pytest.approx(number, rel=1e-7, abs=1e-9, nan_ok=False), name


def parts(metrics: Mapping[str, Any]) -> Tensors:
    return {name: metric.parts for name, metric in metrics.items()}


# -- (a) what lies at masked tokens does not matter --------------------------------------------------------------------


@every_loss
def test_masked_garbage_changes_no_bit_of_a_loss(subject: LossSubject) -> None:
    for case in CASES:
        made = setup(subject.schema, case)
        expected = outcome(subject, made)
        for garbage in GARBAGE:
            assert_same_outcome(outcome(subject, made.poisoned(garbage)), expected, f"with {garbage}")


def assert_same_outcome(found: Outcome, expected: Outcome, what: str) -> None:
    assert_same_bits(found.value, expected.value, f"value {what}")
    for name, gradient in expected.gradients.items():
        assert_same_bits(found.gradients[name], gradient, f"gradient of {name} {what}")
    for name, metric in parts(expected.metrics).items():
        assert_same_bits(parts(found.metrics)[name], metric, f"{name} {what}")


@every_loss
def test_masked_tokens_have_gradient_zero(subject: LossSubject) -> None:
    made = setup(subject.schema, CASES[1])
    for name, gradient in outcome(subject, made.poisoned(math.nan)).gradients.items():
        assert (gradient[~made.mask] == 0).all(), name
        assert torch.isfinite(gradient).all(), name


@every_calculation
def test_masked_garbage_changes_no_bit_of_a_calculation(subject: Calculation) -> None:
    for case in CASES:
        made = setup(subject.schema, case)
        expected = results(subject, made)
        for garbage in GARBAGE:
            for name, result in results(subject, made.poisoned(garbage)).items():
                assert_same_bits(result, expected[name], f"{name} with {garbage}")


def results(subject: Calculation, made: Setup) -> Tensors:
    batch = made.build()
    return subject.run(batch.bind(**made.bound) if subject in LATE else batch)


# -- (b) the order of samples does not matter --------------------------------------------------------------------------

ORDER = [3, 5, 0, 4, 2, 1]


@pytest.mark.parametrize("subject", [s for s in LOSSES if s.permutes], ids=lambda subject: subject.name)
def test_permuted_samples_give_the_same_loss(subject: LossSubject) -> None:
    for case in CASES:
        made = setup(subject.schema, case)
        weights = 1.0 + 0.5 * torch.arange(len(made.mask), dtype=torch.float64).sin()
        expected = outcome(subject, made, weights)
        found = outcome(subject, made.permuted(ORDER), made.reorder(weights, ORDER))
        assert_near(found.value, expected.value, "value")
        for name, gradient in expected.gradients.items():
            assert_near(found.gradients[name], made.reorder(gradient, ORDER), f"gradient of {name}")
        assert_metrics_near(found.metrics, expected.metrics)


@pytest.mark.parametrize("subject", [s for s in CALCULATIONS if s.permutes], ids=lambda subject: subject.name)
def test_permuted_samples_give_the_same_results(subject: Calculation) -> None:
    for case in CASES:
        made = setup(subject.schema, case)
        expected, found = results(subject, made), results(subject, made.permuted(ORDER))
        for name, result in expected.items():
            wanted = result if name.startswith("metric") else made.reorder(result, ORDER)
            assert_near(found[name].to(torch.float64), wanted.to(torch.float64), name)


# -- (c) a step may be split in any way --------------------------------------------------------------------------------

SPLITS: list[dict[str, int]] = [{"samples": 1}, {"samples": 4}, {"max_tokens": 5}]


@pytest.mark.parametrize("subject", [s for s in LOSSES if s.splits], ids=lambda subject: subject.name)
def test_a_split_step_gives_the_same_loss(subject: LossSubject) -> None:
    for case, split in product(CASES, SPLITS):
        made = setup(subject.schema, case)
        expected = outcome(subject, made)
        live, start = made.live(), 0
        value, metrics = torch.zeros((), dtype=torch.float64), Metrics()
        for micro in step_of(subject, made).split(**split):
            end = start + micro.layout.num_tokens
            loss = run(subject, micro.bind(**{name: tensor[start:end] for name, tensor in live.items()}))
            loss.value.backward()
            value, metrics, start = value + loss.value.detach(), metrics.merge(loss.metrics), end
        assert_near(value, expected.value, "value")
        for name, gradient in gradients_of(live).items():
            assert_near(gradient, expected.gradients[name], f"gradient of {name}")
        assert_metrics_near(metrics, expected.metrics)


# -- (d) fixed inputs stay fixed ---------------------------------------------------------------------------------------


def floats(tensors: Tensors) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.is_floating_point()]


@every_loss
def test_no_gradient_reaches_a_fixed_input(subject: LossSubject) -> None:
    made = setup(subject.schema, CASES[0])
    leaves = {name: made.fixed[name].clone().requires_grad_() for name in floats(made.fixed)}
    names = [name for name in floats(made.bound) if made.spec(name).role is Role.FIXED]
    late = {name: made.bound[name].clone().requires_grad_() for name in names}
    passed = Setup(**{**vars(made), "fixed": {**made.fixed, **leaves}})
    live = {**passed.live(), **late}
    weight = torch.ones(len(made.mask), dtype=torch.float64, requires_grad=True)
    run(subject, step_of(subject, passed, weight * 1.5).bind(**live)).value.backward()
    for name, leaf in {**leaves, **late, "correction weights": weight}.items():
        assert leaf.grad is None, f"a gradient reached {name}"


def fixed_fields(subject: LossSubject, batch: Any) -> list[str]:
    plan = type(batch).__plan__
    names = [name for name, spec in plan.items() if spec.role is Role.FIXED and batch.has(name)]
    return [name for name in names if getattr(batch, name).numel()]


@every_loss
def test_a_fixed_field_that_is_made_live_is_found(subject: LossSubject) -> None:
    made = setup(subject.schema, CASES[0])
    names = fixed_fields(subject, step_of(subject, made).bind(**made.live()))
    assert "loss_weights" in names
    for name in names:
        batch = step_of(subject, made).bind(**made.live())
        if getattr(batch, name).is_floating_point():
            getattr(batch, name).requires_grad_()
            with pytest.raises(ContractError, match=name):
                run(subject, batch)


@every_loss
def test_a_fixed_field_that_is_edited_is_found(subject: LossSubject) -> None:
    made = setup(subject.schema, CASES[0])
    for name in fixed_fields(subject, step_of(subject, made).bind(**made.live())):
        batch = step_of(subject, made).bind(**made.live())
        getattr(batch, name).zero_()
        with pytest.raises(ContractError, match=name):
            run(subject, batch)


@every_calculation
def test_a_calculation_has_no_graph(subject: Calculation) -> None:
    made = setup(subject.schema, CASES[0])
    leaves = {name: made.fixed[name].clone().requires_grad_() for name in floats(made.fixed)}
    for name, result in results(subject, Setup(**{**vars(made), "fixed": {**made.fixed, **leaves}})).items():
        assert not result.requires_grad, name


# -- (e) dtypes --------------------------------------------------------------------------------------------------------


@every_loss
def test_the_loss_has_the_dtype_of_what_it_trains(subject: LossSubject) -> None:
    wanted = outcome(subject, setup(subject.schema, CASES[0]))
    for fixed, live in product((torch.float32, torch.float64), repeat=2):
        made = setup(subject.schema, CASES[0], fixed)
        bound = {n: t.to(live) if made.spec(n).role is Role.TRAINABLE else t for n, t in made.bound.items()}
        found = outcome(subject, Setup(**{**vars(made), "bound": bound}))
        assert found.value.dtype == live
        assert all(gradient.dtype == live for gradient in found.gradients.values())
        assert float(found.value) == pytest.approx(float(wanted.value), rel=1e-4, abs=1e-6)


# -- (f) edges ---------------------------------------------------------------------------------------------------------

EDGES: dict[str, list[list[bool]]] = {
    "no samples": [],
    "no tokens": [[], []],
    "one token": [[T]],
    "one masked token": [[F]],
    "all masked": [[F, F], [F], []],
}


def edge(mask: list[list[bool]]) -> Case:
    return make_case(3, mask, [4] * len(mask), spread=0.3)


@every_loss
@pytest.mark.parametrize("mask", EDGES.values(), ids=EDGES.keys())
def test_edges_of_a_loss(subject: LossSubject, mask: list[list[bool]]) -> None:
    found = outcome(subject, setup(subject.schema, edge(mask)).poisoned(math.nan))
    assert torch.isfinite(found.value)
    if not any(map(any, mask)):
        assert found.value == 0.0
        assert all((gradient == 0).all() for gradient in found.gradients.values())
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())
    assert not any(math.isnan(number) for number in found.metrics.compute().values())


@every_calculation
@pytest.mark.parametrize("mask", EDGES.values(), ids=EDGES.keys())
def test_edges_of_a_calculation(subject: Calculation, mask: list[list[bool]]) -> None:
    made = setup(subject.schema, edge(mask)).poisoned(math.nan)
    for name, result in results(subject, made).items():
        assert not result.isnan().any(), name
        if not name.startswith("metric"):
            assert torch.isfinite(result.to(torch.float64)).all(), name
            assert (result.to(torch.float64)[~made.mask] == 0).all(), name


POLICIES = ("log_probs", "old_log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs")


def far_apart() -> Case:
    """Each policy finds each token either likely or 200 nats less so, in every combination."""
    case = make_case(4, [[T] * 4] * 8, [0, 0, 1, 1, 2, 2, 2, 3], spread=0.3)
    for bit, name in enumerate(POLICIES):
        places = [[4 * i + t for t in range(4)] for i in range(8)]
        case.tokens[name] = [[-200.5 if place >> bit & 1 else -0.5 for place in row] for row in places]
    case.tokens["advantages"] = [[100.0 * value for value in row] for row in case.tokens["advantages"]]
    return case


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_ratios_stay_finite(subject: LossSubject, dtype: torch.dtype) -> None:
    found = outcome(subject, setup(subject.schema, far_apart(), dtype))
    assert torch.isfinite(found.value)
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())
    assert not any(math.isnan(number) for number in found.metrics.compute().values())


@every_calculation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_ratios_of_a_calculation_stay_finite(subject: Calculation, dtype: torch.dtype) -> None:
    for name, result in results(subject, setup(subject.schema, far_apart(), dtype)).items():
        assert torch.isfinite(result.to(torch.float64)).all(), name
