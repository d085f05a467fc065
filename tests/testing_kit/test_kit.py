"""Contracts as assertions, and the tracer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import KLBatch, Loss, PolicyBatch, TISBatch, policy_loss
from rollout_contract.corrections import Correction, IcePop, Truncate
from rollout_contract.kl import K3
from rollout_contract.losses.inputs import read
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.objectives import CISPO, PPOClip
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import EntropyBatch
from rollout_contract.testing import assert_correction_contract, assert_loss_contract, gradient_sources


class Step(PolicyBatch, TISBatch, KLBatch, EntropyBatch):
    """Everything."""


def step(**live: Any) -> Step:
    numbers = torch.tensor([-1.0, -2.0, -0.5, -1.5, -0.25])
    built = Step(
        response_lengths=[2, 3],
        loss_mask=torch.tensor([1, 1, 0, 1, 1]),
        old_log_probs=numbers,
        rollout_log_probs=numbers,
        ref_log_probs=numbers,
        advantages=numbers,
    )
    return built.weighted("token-mean").bind(**live)


# -- assertions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [PPOClip(), CISPO()])
def test_objectives_keep_the_contract(objective: Any) -> None:
    assert_loss_contract(objective, PolicyBatch)
    assert_loss_contract(partial(policy_loss, objective=objective), PolicyBatch)


def test_a_lambda_is_a_loss_too() -> None:
    assert_loss_contract(lambda batch: kl_loss(batch, K3()), KLBatch)


def test_a_broken_loss_is_reported_with_its_line() -> None:
    def detached(batch: PolicyBatch) -> Loss:
        log_probs = read(batch, "log_probs").detach()
        return weighted_sum(batch, -log_probs * read(batch, "advantages", like=log_probs), {})

    with pytest.raises(AssertionError, match=r"detached breaks the contract of a loss") as caught:
        assert_loss_contract(detached, PolicyBatch)
    text = str(caught.value)
    assert "unreached  in" in text
    assert 'log_probs = read(batch, "log_probs").detach()' in text
    assert "expected  a gradient into log_probs, which is trainable" in text
    assert "test_kit.py" in text


def test_a_plain_tensor_is_declared_a_loss_by_the_assertion() -> None:
    def mean(batch: PolicyBatch) -> Tensor:
        log_probs = read(batch, "log_probs")
        total = -(log_probs * read(batch, "advantages", like=log_probs)).sum()
        return total / batch.loss_mask.sum().clamp(min=1)

    with pytest.raises(AssertionError, match="the same loss however the step is split"):
        assert_loss_contract(mean, PolicyBatch)
    assert_loss_contract(mean, PolicyBatch, ignore={"split"})


def test_what_cannot_be_checked_is_said() -> None:
    def depends_on_values(batch: PolicyBatch) -> Loss:
        log_probs = read(batch, "log_probs")
        scale = 2.0 if bool((log_probs.detach() < -100.0).any()) else 1.0
        return weighted_sum(batch, -scale * log_probs * read(batch, "advantages", like=log_probs), {})

    with pytest.raises(AssertionError, match=r"rule device: what it does depends\s+on values"):
        assert_loss_contract(depends_on_values, PolicyBatch)
    assert_loss_contract(depends_on_values, PolicyBatch, ignore={"device"})


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"there is no rule 'splits'; did you mean split\?"):
        assert_loss_contract(PPOClip(), PolicyBatch, ignore={"splits"})


@pytest.mark.parametrize("rule", [Truncate(), IcePop(), Truncate(level="sequence") & IcePop()])
def test_corrections_keep_the_contract(rule: Any) -> None:
    assert_correction_contract(rule, TISBatch)


def test_a_correction_that_reads_the_current_policy_is_reported() -> None:
    def live(batch: TISBatch) -> Correction:
        return Correction(batch, weights=(read(batch, "log_probs") - read(batch, "rollout_log_probs")).exp())

    with pytest.raises(AssertionError, match="missing-field"):
        assert_correction_contract(live, TISBatch)


def test_a_correction_has_to_be_returned() -> None:
    def weights(batch: TISBatch) -> Tensor:
        return (read(batch, "old_log_probs") - read(batch, "rollout_log_probs", like=batch.old_log_probs)).exp()

    with pytest.raises(AssertionError, match="expected  a Correction"):
        assert_correction_contract(weights, TISBatch)


# -- gradient_sources ----------------------------------------------------------------------------------------------


def test_sources_of_a_sum_of_losses() -> None:
    live = torch.full((5,), -1.0, requires_grad=True)
    batch = step(log_probs=live * 1.0, entropy=live.square())
    policy = policy_loss(batch, PPOClip())
    assert gradient_sources(policy) == {"log_probs"}
    assert gradient_sources(policy, batch) == {"log_probs"}
    entropy = weighted_sum(batch, read(batch, "entropy"), {})
    assert gradient_sources(policy + 0.1 * kl_loss(batch, K3()) - 0.01 * entropy) == {"log_probs", "entropy"}


def test_sources_of_a_leaf_of_a_constant_and_of_another_batch() -> None:
    leaf = torch.full((5,), -1.0, requires_grad=True)
    batch, other = step(log_probs=leaf), step(log_probs=torch.full((5,), -1.0, requires_grad=True))
    assert gradient_sources(batch.log_probs.sum()) == {"log_probs"}
    assert gradient_sources(batch.advantages.sum()) == frozenset()
    assert gradient_sources(batch.log_probs.sum(), other) == frozenset()
    assert gradient_sources(batch.log_probs.detach().sum()) == frozenset()


def test_sources_name_a_field_that_another_one_was_made_from() -> None:
    live = torch.full((5,), -1.0, requires_grad=True) * 1.0
    batch = step(log_probs=live, entropy=-live)
    assert gradient_sources(batch.entropy.sum()) == {"entropy", "log_probs"}


def test_sources_tell_the_outputs_of_one_operation_apart() -> None:
    scores = torch.randn(2, 5).abs().neg().requires_grad_()
    first, second = scores.unbind(0)
    batch = step(log_probs=first, entropy=second)
    assert gradient_sources(batch.log_probs.sum()) == {"log_probs"}
    assert gradient_sources(batch.entropy.sum()) == {"entropy"}


def test_a_fixed_field_that_was_made_live_is_found() -> None:
    batch = step(log_probs=torch.full((5,), -1.0, requires_grad=True))
    batch.old_log_probs.requires_grad_()
    loss = ((batch.log_probs - batch.old_log_probs).exp() * batch.advantages).sum()
    assert gradient_sources(loss) == {"log_probs", "old_log_probs"}


def test_batches_of_the_base_schema_are_looked_at_too() -> None:
    batch = RolloutBatch(response_lengths=[1], loss_mask=[True])
    assert gradient_sources(torch.ones(1, requires_grad=True).sum(), batch) == frozenset()
