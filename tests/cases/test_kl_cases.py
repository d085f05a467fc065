"""Faults that users of trainers reported: KL terms. Each test names the public report and uses its numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import kl
from rollout_contract.errors import MissingFieldError, NoGraphError
from rollout_contract.kl_reward import penalised_rewards
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import KLBatch, KLRewardBatch, PolicyBatch


def one_token(ref: float, log_prob: float) -> tuple[Any, Tensor]:
    """A bound batch of one token and the leaf of its log-prob."""
    live = torch.tensor([log_prob], dtype=torch.float64, requires_grad=True)
    batch = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=torch.tensor([ref], dtype=torch.float64))
    return batch.weighted("sum").bind(log_probs=live), live


def value_and_slope(estimator: Any, ref: float = -2.0, log_prob: float = -1.0) -> tuple[float, float]:
    batch, live = one_token(ref, log_prob)
    loss = kl_loss(batch, estimator)
    loss.backward()
    assert live.grad is not None
    return loss.value.item(), live.grad.item()


def test_case_009_kl_in_the_loss_has_a_gradient_and_in_the_reward_none() -> None:
    """SkyRL#1340: a KL function under no_grad trained nothing when it was used in the loss."""
    assert value_and_slope(kl.K3())[1] == pytest.approx(0.6321, abs=1e-4)
    batch = KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=torch.tensor([-2.0]))
    with pytest.raises(NoGraphError):
        batch.bind(log_probs=torch.tensor([-1.0]))
    with torch.no_grad():
        evaluated = kl_loss(batch.weighted("sum").bind(log_probs=torch.tensor([-1.0])), kl.K3())
    assert not evaluated.value.requires_grad

    in_reward = KLRewardBatch(
        response_lengths=[1],
        loss_mask=[1],
        token_rewards=torch.tensor([1.0]),
        old_log_probs=torch.tensor([-1.0], requires_grad=True),
        ref_log_probs=torch.tensor([-2.0]),
    )
    penalised = penalised_rewards(in_reward, 0.1)
    assert penalised.tolist() == pytest.approx([0.9])
    assert not penalised.requires_grad


def test_case_045_a_far_away_token_does_not_overflow() -> None:
    """miles#1363: exp of a large log-ratio overflows in float32 above 88.72 nats."""
    for estimator in (kl.K3(), kl.LowVarKL(), kl.UnbiasedKL()):
        live = torch.tensor([-200.0, -1.0], requires_grad=True)
        batch = KLBatch if not isinstance(estimator, kl.UnbiasedKL) else estimator.reads
        fields: dict[str, Any] = {"ref_log_probs": torch.tensor([-0.1, -300.0])}
        if isinstance(estimator, kl.UnbiasedKL):
            fields["old_log_probs"] = torch.tensor([-0.1, -300.0])
        made: Any = batch(response_lengths=[2], loss_mask=[1, 1], **fields)
        loss = kl_loss(made.weighted("sum").bind(log_probs=live), estimator)
        loss.backward()
        assert torch.isfinite(loss.value)
        assert live.grad is not None
        assert torch.isfinite(live.grad).all()
        # What is reported is not clamped: (-199.9 + 299) / 2.
        assert loss.metrics.compute()["kl_k1"] == pytest.approx((-199.9 + 299.0) / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (kl.K2(), 0.5, 1.0),
        (kl.K3(), 0.3679, 0.6321),
        (kl.ScoreFunctionKL(), 0.3679, 1.0),
        (kl.StraightThroughKL(), 0.3679, 1.0),
    ],
    ids=repr,
)
def test_case_070_gradients_of_the_estimators(estimator: Any, value: float, slope: float) -> None:
    """NeMo-RL#2506: the gradient of an estimator is not the gradient of the KL; lp - ref = 1 is."""
    assert value_and_slope(estimator) == (pytest.approx(value, abs=1e-4), pytest.approx(slope, abs=1e-4))


def test_case_070_k1_is_useless_as_a_loss() -> None:
    """trl#4967: its gradient is 1 whatever the reference says, and has expectation zero."""
    with pytest.warns(UserWarning, match="trains nothing"):
        assert value_and_slope(kl.K1()) == (1.0, 1.0)


def test_case_070_the_weight_has_no_gradient_where_the_input_clamp_bites() -> None:
    """NeMo-RL#2958: a clamped estimate must not be trained through its weight."""
    estimator = kl.ScoreFunctionKL(estimator=kl.K3(input_bound=0.5))
    value, slope = value_and_slope(estimator)
    assert value == pytest.approx(math.exp(-0.5) - 0.5)
    assert slope == 0.0
    live = kl.ScoreFunctionKL(estimator=kl.K3(input_bound=0.5), cut_where_clamped=False)
    assert value_and_slope(live)[1] == pytest.approx(math.exp(-0.5) - 0.5)


class WithReference(PolicyBatch, KLBatch):
    """A step that has a KL term."""


def test_case_072_a_reference_is_needed_only_where_it_is_used() -> None:
    """OpenRLHF#773: a coefficient of 0 must not ask for a reference, a positive one must."""
    fields = {"response_lengths": [1], "loss_mask": [1]}
    fields |= {"old_log_probs": torch.tensor([-1.0]), "advantages": torch.tensor([1.0])}
    live = torch.tensor([-1.0], requires_grad=True)
    plain = PolicyBatch(**fields).weighted("sum").bind(log_probs=live)
    policy_loss(plain, PPOClip()).backward()
    with pytest.raises(MissingFieldError, match="ref_log_probs"):
        kl_loss(plain, kl.K2())  # type: ignore[arg-type]
    with pytest.raises(MissingFieldError, match="ref_log_probs"):
        WithReference(**fields)  # type: ignore[call-arg]
    step = WithReference(**fields, ref_log_probs=torch.tensor([-2.0])).weighted("sum").bind(log_probs=live)
    assert (policy_loss(step, PPOClip()) + 0.1 * kl_loss(step, kl.K2())).value.item() == pytest.approx(-1.0 + 0.05)
