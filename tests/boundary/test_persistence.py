"""miles' persistence boundary in one line: no score that a step keeps carries a graph into its loss.

miles stores the scores of a step in a dict of lists and reads them again in its losses. Written by hand, four of them
were detached where they are stored (miles #1966), and each consumer had to do it once more, because direct callers go
around that place; values, returns, advantages and a precomputed reverse KL were not among them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import settings
from rollout_contract.boundary import MILES, PersistedBatch, contract, guard
from rollout_contract.errors import LiveGraphError
from tests.boundary.dicts import SCORES, live, miles_dict, rows

FIELDS = {
    "log_probs": "old_log_probs",
    "rollout_log_probs": "rollout_log_probs",
    "ref_log_probs": "ref_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "values": "values",
    "returns": "returns",
    "advantages": "advantages",
    "opd_reverse_kl": "reverse_kl",
}


def loss_of_everything(batch: dict[str, Any], log_probs: Tensor, values: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Reads every score as miles' policy and value losses do: ratio, TIS weight, KL, distillation, clipped values."""
    old, rollout, ref, teacher, old_values, returns, advantages, reverse_kl = (
        torch.cat([torch.as_tensor(row) for row in batch[key]]) for key in SCORES
    )
    mask = torch.cat([torch.as_tensor(row) for row in batch["loss_masks"]])
    weights = (old - rollout).exp().clamp(max=2.0)
    advantages = advantages - 0.5 * (old - teacher) - 0.1 * reverse_kl
    policy = -(weights * (log_probs - old).exp() * advantages)
    kl = (ref - log_probs).exp() - 1 - (ref - log_probs)
    clipped = old_values + (values - old_values).clamp(-0.2, 0.2)
    critic = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    loss = ((policy + 0.01 * kl + critic) * mask).sum() / mask.sum()
    return loss, {"loss": loss, "weights": weights, "kl": kl}


class Step:
    """A step whose scores all come from one graph, as if nobody had thought of ``no_grad``."""

    def __init__(self) -> None:
        self.leaves = {key: torch.cat(rows(-1.0 - 0.1 * i)).requires_grad_() for i, key in enumerate(SCORES)}
        self.log_probs = torch.cat(rows(-1.05)).requires_grad_()
        self.values = torch.cat(rows(-1.35)).requires_grad_()
        scores: dict[str, Any] = {key: list((leaf * 1.0).split([2, 3])) for key, leaf in self.leaves.items()}
        self.data = miles_dict(**scores)

    def backward(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        loss.backward()
        assert self.log_probs.grad is not None
        assert self.values.grad is not None
        return self.log_probs.grad, self.values.grad

    def leaks(self) -> list[str]:
        return [key for key, leaf in self.leaves.items() if leaf.grad is not None]


def right() -> tuple[Tensor, Tensor]:
    """Gradients of the policy and the critic where every score is a constant."""
    step = Step()
    step.data |= {key: [row.detach() for row in step.data[key]] for key in SCORES}
    return step.backward(loss_of_everything(step.data, step.log_probs, step.values)[0])


def test_without_a_boundary_every_score_leaks() -> None:
    step = Step()
    step.backward(loss_of_everything(step.data, step.log_probs, step.values)[0])
    assert step.leaks() == list(SCORES)


def test_one_line_after_scoring_is_the_boundary() -> None:
    step = Step()
    guard(step.data, PersistedBatch, MILES)
    found = step.backward(loss_of_everything(step.data, step.log_probs, step.values)[0])
    assert step.leaks() == []
    assert all(map(torch.equal, found, right()))


def test_a_direct_caller_who_goes_around_the_boundary_cannot_leak_either() -> None:
    step = Step()
    loss_function = contract(PersistedBatch, MILES, argument="batch")(loss_of_everything)
    loss, metrics = loss_function(step.data, step.log_probs, step.values)
    found = step.backward(loss)
    assert step.leaks() == []
    assert all(map(torch.equal, found, right()))
    assert not any(metric.requires_grad for metric in metrics.values())


def test_a_score_that_becomes_live_between_the_two_boundaries() -> None:
    """As advantages that are computed from the dict after it was guarded, by code with gradients on."""
    step = Step()
    guard(step.data, PersistedBatch, MILES)
    step.data["advantages"] = [row * 1.0 for row in (step.leaves["advantages"] * 1.0).split([2, 3])]
    contract(PersistedBatch, MILES, argument="batch")(loss_of_everything)(step.data, step.log_probs, step.values)[
        0
    ].backward()
    assert step.leaks() == []


@pytest.mark.parametrize("key", SCORES)
def test_every_score_alone(key: str) -> None:
    step = Step()
    step.data |= {other: [row.detach() for row in step.data[other]] for other in SCORES if other != key}
    before = step.data[key]
    batch = guard(step.data, PersistedBatch, MILES)
    assert all(new.grad_fn is None and not new.requires_grad for new in step.data[key])
    assert all(new.data_ptr() == old.data_ptr() for new, old in zip(step.data[key], before, strict=True))
    assert getattr(batch, FIELDS[key]).grad_fn is None
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        guard(step.data | {key: before}, PersistedBatch, MILES)
    assert [violation.field for violation in caught.value.violations] == [FIELDS[key]]


def test_scores_that_a_run_does_not_have() -> None:
    """No teacher, no reference, no critic: the keys are absent, or None, or hold None for every sample."""
    data = miles_dict(
        log_probs=live(rows()), teacher_log_probs=..., opd_reverse_kl=..., values=None, returns=[None, None]
    )
    batch = guard(data, PersistedBatch, MILES)
    assert not any(map(batch.has, ["teacher_log_probs", "reverse_kl", "values", "returns"]))
    assert "teacher_log_probs" not in data
    assert data["values"] is None


def test_the_distillation_advantage_of_the_report() -> None:
    """student = [0, 1], teacher = 0, advantages = 2, coefficient 0.5: live scores got the gradients [-.1, .15]."""
    student = torch.tensor([-1.0, 0.0], requires_grad=True)
    teacher = torch.tensor([-1.0, -1.0], requires_grad=True)
    log_probs = torch.tensor([-0.8, -1.3], requires_grad=True)
    data: dict[str, Any] = {
        "response_lengths": [2], "loss_masks": [[1, 1]], "advantages": [[2.0, 2.0]],
        "log_probs": [student * 1.0], "teacher_log_probs": [teacher * 1.0],
    }  # fmt: skip
    guard(data, PersistedBatch, MILES)
    advantages = torch.tensor(data["advantages"][0]) - 0.5 * (data["log_probs"][0] - data["teacher_log_probs"][0])
    assert advantages.tolist() == [2.0, 1.5]
    (advantages * log_probs).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [2.0, 1.5]
    assert student.grad is None
    assert teacher.grad is None


def test_the_importance_weight_of_the_report() -> None:
    """lp = [-1, -2], rollout = [-1.2, -1.5], A = 1: a live weight gave the gradient [0, +.6065]."""
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    data: dict[str, Any] = {
        "response_lengths": [2], "loss_masks": [[1, 1]], "advantages": [[1.0, 1.0]],
        "log_probs": [log_probs * 1.0], "rollout_log_probs": [[-1.2, -1.5]],
    }  # fmt: skip
    guard(data, PersistedBatch, MILES)
    weights = (data["log_probs"][0] - torch.tensor(data["rollout_log_probs"][0])).exp().clamp(max=2.0)
    (-weights * log_probs).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.2214, -0.6065], abs=1e-4)
