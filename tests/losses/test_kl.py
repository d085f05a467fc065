"""Values and gradients of the KL loss against formulas, and what it does with a batch."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollout_contract import kl
from rollout_contract.corrections import Correction, Reject
from rollout_contract.errors import MissingFieldError, MutatedError
from rollout_contract.losses.kl import kl_loss
from rollout_contract.schemas import KLBatch, PolicyBatch, TISBatch
from tests.losses.kl_steps import (
    DERIVED,
    LOG_PROBS,
    MASK,
    OLD,
    PLAIN,
    REFERENCE,
    Step,
    label,
    live,
    numbers,
    quiet_kl_loss,
    step,
)

every_plain = pytest.mark.parametrize("estimator", PLAIN, ids=label)
every_estimator = pytest.mark.parametrize("estimator", [*PLAIN, *DERIVED], ids=label)

# -- formulas --------------------------------------------------------------------------------------------------------

VALUE = {"k1": lambda x: x, "k2": lambda x: x**2 / 2, "k3": lambda x: math.exp(-x) - 1 + x, "abs": abs}
SLOPE = {"k1": lambda x: 1.0, "k2": lambda x: x, "k3": lambda x: 1 - math.exp(-x), "abs": lambda x: math.copysign(1, x)}


@pytest.mark.parametrize("x", [-30.0, -1.0, -1e-4, 1e-4, 0.5, 20.0, 40.0])
@pytest.mark.parametrize("estimator", [kl.K1(), kl.K2(), kl.K3(), kl.AbsoluteKL()], ids=label)
def test_value_and_gradient_are_the_formulas(estimator: kl.SampledKL, x: float) -> None:
    log_ratio = numbers([x]).requires_grad_()
    value = estimator.value(log_ratio)
    value.backward()
    assert value.item() == pytest.approx(VALUE[estimator.name](x), rel=1e-7)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(SLOPE[estimator.name](x), rel=1e-9)


def test_k3_is_exact_near_zero() -> None:
    """exp(-x) - 1 + x in float32 would be 0 or 6e-8; x^2 / 2 is right."""
    assert kl.K3().value(torch.tensor([1e-4])).item() == pytest.approx(5e-9, rel=1e-3)


@pytest.mark.parametrize(
    ("x", "value", "slope"),
    [
        (1.0, math.exp(-1), 1 - math.exp(-1)),
        (-2.0, math.exp(2) - 3, 1 - math.exp(2)),  # 4.39, below the output clamp
        (-3.0, 10.0, 0.0),  # 16.09: the output clamp bites
        (-50.0, 10.0, 0.0),
        (15.0, 10.0, 0.0),
        (25.0, 10.0, 0.0),
    ],
)
def test_low_var_kl_clamps_input_and_output(x: float, value: float, slope: float) -> None:
    log_ratio = numbers([x]).requires_grad_()
    found = kl.LowVarKL().value(log_ratio)
    found.backward()
    assert log_ratio.grad is not None
    assert (found.item(), log_ratio.grad.item()) == (pytest.approx(value), pytest.approx(slope))


def test_low_var_kl_is_k3_with_two_numbers() -> None:
    same = kl.K3(input_bound=20.0, output_bound=10.0)
    log_ratio = torch.linspace(-30, 30, 61)
    assert torch.equal(kl.LowVarKL().value(log_ratio), same.value(log_ratio))


def test_the_loss_is_the_mean_of_the_formula_and_its_gradient_too() -> None:
    log_probs = live()
    loss = kl_loss(step().bind(log_probs=log_probs), kl.K2())
    loss.backward()
    x = [a - b for a, b, m in zip(LOG_PROBS, REFERENCE, MASK, strict=True) if m]
    assert loss.value.item() == pytest.approx(sum(v**2 / 2 for v in x) / 5)
    expected = [(a - b) * m / 5 for a, b, m in zip(LOG_PROBS, REFERENCE, MASK, strict=True)]
    torch.testing.assert_close(log_probs.grad, numbers(expected))


@every_plain
def test_straight_through_has_the_gradient_of_k2(estimator: kl.SampledKL) -> None:
    log_probs = live()
    batch = step().bind(log_probs=log_probs)
    loss = kl_loss(batch, kl.StraightThroughKL(estimator=estimator))
    assert loss.value.item() == pytest.approx(quiet_kl_loss(batch, estimator).value.item())
    loss.backward()
    expected = [(a - b) * m / 5 for a, b, m in zip(LOG_PROBS, REFERENCE, MASK, strict=True)]
    torch.testing.assert_close(log_probs.grad, numbers(expected))


def test_the_unbiased_weight_is_live() -> None:
    """d (w k) = w (k + k'), which for k3 is w x."""
    log_probs = live()
    loss = kl_loss(step().bind(log_probs=log_probs), kl.UnbiasedKL())
    loss.backward()
    terms = [math.exp(a - o) * (a - b) * m / 5 for a, b, o, m in zip(LOG_PROBS, REFERENCE, OLD, MASK, strict=True)]
    torch.testing.assert_close(log_probs.grad, numbers(terms))


def test_order_of_clamp_and_weight() -> None:
    """Weight e, estimate 3, output clamp 2: 2 when the weight comes first, 2 e when the clamp does."""
    fields = {"response_lengths": [1], "loss_mask": [1]}
    fields |= {"ref_log_probs": numbers([-4.0]), "old_log_probs": numbers([-2.0]), "rollout_log_probs": numbers([-2.0])}
    batch = step(**fields).bind(log_probs=live([-1.0]))
    clamped = kl.K1(output_bound=2.0)
    assert kl_loss(batch, kl.UnbiasedKL(estimator=clamped)).value.item() == pytest.approx(2.0)
    outside = kl.UnbiasedKL(estimator=clamped, weight_before_clamp=False)
    assert kl_loss(batch, outside).value.item() == pytest.approx(2.0 * math.e)


def test_the_weight_is_constant_where_the_input_clamp_bites() -> None:
    estimator = kl.K1(input_bound=2.0)
    fields = {"response_lengths": [1], "loss_mask": [1]}
    fields |= {"ref_log_probs": numbers([-6.0]), "old_log_probs": numbers([-1.5]), "rollout_log_probs": numbers([-1.5])}
    for cut, expected in ((True, 0.0), (False, 2.0 * math.exp(0.5))):
        log_probs = live([-1.0])
        loss = kl_loss(
            step(**fields).bind(log_probs=log_probs), kl.UnbiasedKL(estimator=estimator, cut_where_clamped=cut)
        )
        loss.backward()
        assert loss.value.item() == pytest.approx(2.0 * math.exp(0.5))
        assert log_probs.grad is not None
        assert log_probs.grad.item() == pytest.approx(expected)


DIFFERENTIABLE = [
    *[kl.K1(), kl.K2(), kl.K3(), kl.LowVarKL(), kl.AbsoluteKL()],
    *[kl.UnbiasedKL(), kl.UnbiasedKL(level="sequence"), kl.UnbiasedKL(estimator=kl.LowVarKL()), kl.BehaviourKL()],
]


@pytest.mark.parametrize("estimator", DIFFERENTIABLE, ids=label)
def test_gradcheck(estimator: Any) -> None:
    apart = [value - 0.1 for value in LOG_PROBS]  # no log-ratio of 0, where |x| has a kink
    batch = step()
    assert torch.autograd.gradcheck(
        lambda log_probs: quiet_kl_loss(batch.bind(log_probs=log_probs), estimator).value, (live(apart),)
    )


# -- batches -----------------------------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entries_reach_neither_value_nor_gradient(estimator: Any, garbage: float) -> None:
    def run(poison: float | None) -> tuple[Tensor, Tensor, dict[str, float]]:
        def put(values: list[float]) -> Tensor:
            return numbers([v if m or poison is None else poison for v, m in zip(values, MASK, strict=True)])

        fields = {name: put(getattr(step(), name).tolist()) for name in ("ref_log_probs", "old_log_probs")}
        log_probs = put(LOG_PROBS).requires_grad_()
        loss = quiet_kl_loss(step(**fields).bind(log_probs=log_probs), estimator)
        loss.backward()
        assert log_probs.grad is not None
        return loss.value.detach(), log_probs.grad, loss.metrics.compute()

    clean, poisoned = run(None), run(garbage)
    assert torch.equal(clean[0], poisoned[0])
    assert torch.equal(clean[1], poisoned[1])
    assert clean[2] == poisoned[2]


@every_estimator
def test_any_split_adds_up(estimator: Any) -> None:
    log_probs = live()
    whole = quiet_kl_loss(step().bind(log_probs=log_probs), estimator).value
    parts = zip(step().split(samples=1), log_probs.split([3, 2, 1]), strict=True)
    summed = sum(quiet_kl_loss(part.bind(log_probs=own), estimator).value for part, own in parts)
    torch.testing.assert_close(summed, whole)


@every_estimator
def test_everything_stays_finite_in_float32(estimator: Any) -> None:
    reference_scores = torch.tensor([-0.1, -2000.0, -0.1, -400.0, -1e-6, -95.0])
    log_probs = torch.tensor([-2000.0, -0.1, -95.0, -1e-6, -400.0, -0.1], requires_grad=True)
    batch = step(torch.float32, loss_mask=[1] * 6, ref_log_probs=reference_scores)
    loss = quiet_kl_loss(batch.bind(log_probs=log_probs), estimator)
    loss.backward()
    assert log_probs.grad is not None
    assert torch.isfinite(log_probs.grad).all()
    unbounded = isinstance(estimator, kl.WeightedKL) and estimator.estimator.output_bound is None
    assert unbounded or torch.isfinite(loss.value)


@every_estimator
def test_a_masked_out_or_empty_batch_gives_zero_with_a_graph(estimator: Any) -> None:
    empty = {name: torch.zeros(0) for name in ("ref_log_probs", "old_log_probs", "rollout_log_probs")}
    for batch, size in (
        (step(loss_mask=[0] * 6), 6),
        (step(response_lengths=[], loss_mask=torch.zeros(0), **empty), 0),
    ):
        log_probs = torch.full((size,), -1.0, requires_grad=True)
        loss = quiet_kl_loss(batch.bind(log_probs=log_probs), estimator)
        assert loss.value.item() == 0.0
        loss.backward()
        assert log_probs.grad is not None
        assert torch.equal(log_probs.grad, torch.zeros(size))


def test_the_dtype_is_that_of_the_log_probs() -> None:
    batch = step(torch.float64)
    loss = kl_loss(batch.bind(log_probs=torch.tensor(LOG_PROBS, requires_grad=True)), kl.UnbiasedKL())
    assert loss.value.dtype == torch.float32


def test_fixed_fields_get_no_gradient() -> None:
    sources = {name: numbers(OLD).requires_grad_() for name in ("ref_log_probs", "old_log_probs", "rollout_log_probs")}
    batch = step(**sources).bind(log_probs=live())
    for estimator in (kl.K2(), kl.UnbiasedKL(), kl.BehaviourKL()):
        kl_loss(batch, estimator).backward()
    assert all(source.grad is None for source in sources.values())


def test_an_edited_reference_is_found() -> None:
    batch = step().bind(log_probs=live())
    batch.ref_log_probs.add_(1.0)
    with pytest.raises(MutatedError, match="ref_log_probs"):
        kl_loss(batch, kl.K2())


class Corrected(Step, PolicyBatch, TISBatch):
    """A step with advantages, so that it has a use for a correction."""


def test_importance_weights_are_not_applied_but_rejection_is() -> None:
    plain = step().extend(Corrected, advantages=numbers([1.0] * 6))
    weights = Correction(plain, weights=torch.full((6,), 0.5, dtype=torch.float64))
    corrected = plain.corrected(weights).weighted("token-mean").bind(log_probs=live())
    expected = kl_loss(step().bind(log_probs=live()), kl.K2()).value
    loss = kl_loss(corrected, kl.K2())
    assert loss.value.item() == pytest.approx(expected.item())
    assert loss.has_correction
    assert not loss.used_correction

    rejected = plain.corrected(Reject(low=0.9)(plain)).weighted("token-mean").bind(log_probs=live())
    kept = rejected.loss_mask.tolist()
    assert 0 < sum(kept) < 5
    x = [a - b for a, b, keep in zip(LOG_PROBS, REFERENCE, kept, strict=True) if keep]
    assert kl_loss(rejected, kl.K2()).value.item() == pytest.approx(sum(v**2 / 2 for v in x) / len(x))


# -- what it says ------------------------------------------------------------------------------------------------------


@pytest.mark.uninstrumented("counts stack frames")
def test_k1_as_a_loss_warns_where_it_is_called() -> None:
    with pytest.warns(UserWarning, match="k1 as a loss trains nothing") as caught:
        kl_loss(step().bind(log_probs=live()), kl.K1())
    assert caught[0].filename == __file__


def test_a_weighted_k1_does_not_warn() -> None:
    kl_loss(step().bind(log_probs=live()), kl.UnbiasedKL(estimator=kl.K1()))


def test_metrics_are_detached_and_name_the_clamped_share() -> None:
    loss = kl_loss(step().bind(log_probs=live()), kl.K2(output_bound=1.0))
    assert all(not metric.parts.requires_grad for metric in loss.metrics.values())
    found = loss.metrics.compute()
    x = [a - b for a, b, m in zip(LOG_PROBS, REFERENCE, MASK, strict=True) if m]
    assert found["kl"] == pytest.approx(sum(min(v**2 / 2, 1.0) for v in x) / 5)
    assert found["kl_loss"] == pytest.approx(found["kl"])
    assert found["kl_k1"] == pytest.approx(sum(x) / 5)
    assert found["kl_clamped"] == pytest.approx(sum(v**2 / 2 > 1.0 for v in x) / 5)
    assert "kl_clamped" not in kl_loss(step().bind(log_probs=live()), kl.K2()).metrics


def test_an_estimator_says_by_its_schema_what_it_needs() -> None:
    fields = {"response_lengths": [2], "loss_mask": [1, 1]}
    batch = KLBatch(**fields, ref_log_probs=numbers([-1.0, -2.0])).weighted("sum").bind(log_probs=live([-1.0, -1.0]))
    kl_loss(batch, kl.K2())
    with pytest.raises(MissingFieldError, match="lacks old_log_probs"):
        kl_loss(batch, kl.UnbiasedKL())  # type: ignore[arg-type]
    with pytest.raises(MissingFieldError, match="lacks rollout_log_probs"):
        kl_loss(batch, kl.BehaviourKL())  # type: ignore[arg-type]


def test_an_unbound_or_unweighted_batch_is_named() -> None:
    with pytest.raises(MissingFieldError, match="log_probs"):
        kl_loss(step(), kl.K2())
    raw = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=numbers([-1.0])).bind(log_probs=live([-1.0]))
    with pytest.raises(MissingFieldError, match="loss_weights"):
        kl_loss(raw, kl.K2())


def test_an_estimator_of_ones_own() -> None:
    class Hinge(kl.SampledKL):
        """Only what exceeds half a nat."""

        name = "hinge"
        formula = "max(x - 0.5, 0)"
        known_as: ClassVar = {}

        def estimate(self, log_ratio: Tensor, /) -> Tensor:
            return (log_ratio - 0.5).clamp(min=0.0)

    x = [a - b for a, b, m in zip(LOG_PROBS, REFERENCE, MASK, strict=True) if m]
    loss = kl_loss(step().bind(log_probs=live()), Hinge())
    assert loss.value.item() == pytest.approx(sum(max(v - 0.5, 0.0) for v in x) / 5)


@pytest.mark.parametrize("wrong", [{"input_bound": 0.0}, {"output_bound": -1.0}, {"clamp": 3.0}])
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        kl.K3(**wrong)  # type: ignore[arg-type]


def test_estimators_are_frozen_values() -> None:
    with pytest.raises(ValidationError):
        kl.K3().input_bound = 1.0  # type: ignore[misc]
    assert kl.UnbiasedKL(estimator=kl.LowVarKL()) == kl.UnbiasedKL(estimator=kl.LowVarKL())
    assert kl.K3().model_dump() == {"input_bound": None, "output_bound": None}


def test_the_registry_holds_every_estimator_with_its_documentation() -> None:
    def concrete(kind: type[kl.KLEstimator]) -> set[type[kl.KLEstimator]]:
        found = {kind} if "name" in kind.__dict__ else set()
        return found.union(*(concrete(child) for child in kind.__subclasses__()))

    shipped = {kind for kind in concrete(kl.KLEstimator) if kind.__module__ == kl.__name__}
    assert set(kl.KL_ESTIMATORS.values()) == shipped
    for name, kind in kl.KL_ESTIMATORS.items():
        assert kind.name == name
        assert kind.formula
        assert kind.known_as
        assert kind.__doc__
