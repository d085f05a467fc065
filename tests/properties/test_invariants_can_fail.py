"""The suite of invariants finds each fault that it is there for: every check is shown a loss that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import PolicyBatch
from rollout_contract.losses.loss import Loss
from rollout_contract.metrics import Metrics, mean
from tests.properties import test_invariants as invariants
from tests.properties.setups import setup
from tests.properties.subjects import Calculation, LossSubject

Check = Callable[[LossSubject], None]


def loss_of(batch: Any, value: Tensor) -> Loss:
    batch.verify()
    return Loss(value, Metrics())


def surrogate(batch: Any) -> Tensor:
    """A sound loss, but for what each fault adds."""
    mask = batch.loss_mask
    old = batch.old_log_probs.to(batch.log_probs.dtype)
    ratio = (batch.log_probs - old).where(mask, 0.0).clamp(-20, 20).exp()
    weights = batch.loss_weights.to(ratio.dtype)
    return -(weights * ratio * batch.advantages.to(ratio.dtype).where(mask, 0.0)).sum()


def sound(batch: Any) -> Loss:
    return loss_of(batch, surrogate(batch))


def multiplies_by_the_mask(batch: Any) -> Loss:
    return loss_of(batch, ((batch.log_probs - batch.old_log_probs).exp() * batch.loss_mask).sum())


def replaces_after_exp(batch: Any) -> Loss:
    return loss_of(batch, (batch.log_probs * 1e3).exp().where(batch.loss_mask, 0.0).sum() * 0.0 + surrogate(batch))


def leaks_into_a_metric(batch: Any) -> Loss:
    everywhere = torch.ones_like(batch.loss_mask)
    return Loss(surrogate(batch), Metrics({"advantage": mean(batch.advantages, everywhere)}))


def divides_by_its_own_count(batch: Any) -> Loss:
    return loss_of(batch, surrogate(batch) / batch.loss_mask.sum().clamp(min=1))


def averages_a_metric_over_micro_batches(batch: Any) -> Loss:
    centre = batch.advantages.where(batch.loss_mask, 0.0).mean().reshape(1)
    return Loss(surrogate(batch), Metrics({"advantage": mean(centre, torch.ones(1, dtype=torch.bool))}))


def weighs_by_position(batch: Any) -> Loss:
    places = torch.arange(batch.layout.num_tokens) + 1.0
    terms = (batch.log_probs.where(batch.loss_mask, 0.0) * places).where(batch.loss_mask, 0.0)
    return loss_of(batch, terms.sum())


def never_verifies(batch: Any) -> Loss:
    return Loss(surrogate(batch), Metrics())


def promotes_to_float64(batch: Any) -> Loss:
    return loss_of(batch, surrogate(batch).to(torch.float64))


def is_nan_when_all_are_masked(batch: Any) -> Loss:
    return loss_of(batch, surrogate(batch) / batch.loss_mask.sum())


def has_no_graph_when_empty(batch: Any) -> Loss:
    return loss_of(batch, surrogate(batch) if batch.loss_mask.any() else torch.zeros((), dtype=batch.log_probs.dtype))


FAULTS: list[tuple[Callable[[Any], Loss], Check]] = [
    (multiplies_by_the_mask, invariants.test_masked_garbage_changes_no_bit_of_a_loss),
    (replaces_after_exp, invariants.test_masked_garbage_changes_no_bit_of_a_loss),
    (replaces_after_exp, invariants.test_masked_tokens_have_gradient_zero),
    (leaks_into_a_metric, invariants.test_masked_garbage_changes_no_bit_of_a_loss),
    (divides_by_its_own_count, invariants.test_a_split_step_gives_the_same_loss),
    (averages_a_metric_over_micro_batches, invariants.test_a_split_step_gives_the_same_loss),
    (weighs_by_position, invariants.test_permuted_samples_give_the_same_loss),
    (never_verifies, invariants.test_a_fixed_field_that_is_made_live_is_found),
    (never_verifies, invariants.test_a_fixed_field_that_is_edited_is_found),
    (promotes_to_float64, invariants.test_the_loss_has_the_dtype_of_what_it_trains),
    *(
        (fault, lambda s: invariants.test_edges_of_a_loss(s, [[False, False]]))
        for fault in (is_nan_when_all_are_masked,)
    ),
    (has_no_graph_when_empty, lambda s: invariants.test_edges_of_a_loss(s, [])),
]
CHECKS: list[Check] = [*dict.fromkeys(check for _, check in FAULTS), invariants.test_no_gradient_reaches_a_fixed_input]


def subject(fault: Callable[[Any], Loss]) -> LossSubject:
    return LossSubject(fault.__name__, PolicyBatch, fault)


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_fault_is_found(fault: Callable[[Any], Loss], check: Check) -> None:
    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
        check(subject(fault))


@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_loss_passes(check: Check) -> None:
    check(subject(sound))


def test_a_gradient_that_reaches_a_fixed_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch cuts every graph, so a leak needs a loss that keeps the caller's own tensor."""
    made = setup(PolicyBatch, invariants.CASES[0])
    kept: list[Tensor] = []
    build = type(made).build

    def keeping(self: Any) -> Any:
        kept.append(self.fixed["advantages"])
        return build(self)

    monkeypatch.setattr(type(made), "build", keeping)

    def leaking(batch: Any) -> Loss:
        return loss_of(batch, surrogate(batch) + kept[-1].where(batch.loss_mask, 0.0).sum())

    with pytest.raises(AssertionError, match="a gradient reached advantages"):
        invariants.test_no_gradient_reaches_a_fixed_input(subject(leaking))


def test_a_live_result_and_masked_garbage_of_a_calculation_are_found() -> None:
    def unmasked(batch: Any) -> dict[str, Tensor]:
        return {"advantages": batch.advantages * 2}

    def live(batch: Any) -> dict[str, Tensor]:
        return {"advantages": torch.zeros(batch.layout.num_tokens, requires_grad=True) * 2}

    with pytest.raises(AssertionError):
        invariants.test_masked_garbage_changes_no_bit_of_a_calculation(Calculation("unmasked", PolicyBatch, unmasked))
    with pytest.raises(AssertionError):
        invariants.test_a_calculation_has_no_graph(Calculation("live", PolicyBatch, live))
