"""What was validated stays as it was: edits after the build are found by the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollout_contract import PolicyBatch, RolloutBatch, policy_loss, settings
from rollout_contract.errors import ContractError, LiveGraphError, MutatedError
from rollout_contract.objectives import PPOClip
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, live, policy_batch

FIXED = ["loss_mask", "old_log_probs", "advantages", "loss_weights"]


def step() -> PolicyBatch:
    return policy_batch().weighted("token-mean")


def losses(batch: PolicyBatch) -> Any:
    return policy_loss(batch.bind(log_probs=live()), PPOClip())


EDITS: dict[str, Callable[[Tensor], Any]] = {
    "fill_": lambda x: x.fill_(1),
    "zero_": lambda x: x.zero_(),
    "item": lambda x: x.__setitem__(0, 0),
    "slice": lambda x: x.__setitem__(slice(1, 3), 0),
    "view": lambda x: x[1:].zero_(),
    "detached alias": lambda x: x.detach().zero_(),
    "reshaped alias": lambda x: x.reshape(-1, 1).zero_(),
    "copy_": lambda x: x.copy_(torch.zeros(5)),
    "out=": lambda x: torch.logical_not(x, out=x),
    "index_put_": lambda x: x.index_put_((torch.tensor([0]),), torch.zeros(1, dtype=x.dtype)),
    "masked_fill_": lambda x: x.masked_fill_(torch.ones(5, dtype=torch.bool), 0),
    "set_": lambda x: x.set_(torch.zeros(5, dtype=x.dtype)),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("edit", EDITS.values(), ids=[name.replace(" ", "_") for name in EDITS])
def test_an_edit_in_place_is_found(edit: Callable[[Tensor], Any], name: str) -> None:
    batch = step()
    edit(getattr(batch, name))
    with pytest.raises(MutatedError) as caught:
        losses(batch)
    assert caught.value.field == name
    assert caught.value.found == "an edit in place since then"
    assert caught.value.hint == "compute a new tensor and build or extend a batch with it"


@pytest.mark.parametrize("name", FIXED)
def test_a_loss_looks_at_what_was_edited_after_bind(name: str) -> None:
    bound = step().bind(log_probs=live())
    getattr(bound, name).zero_()
    with pytest.raises(MutatedError) as caught:
        policy_loss(bound, PPOClip())
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["old_log_probs", "advantages", "loss_weights"])
@pytest.mark.parametrize(
    "make_live",
    [
        lambda x: x.requires_grad_(),
        lambda x: setattr(x, "requires_grad", True),
        lambda x: x.mul_(torch.ones(5, requires_grad=True)),
        lambda x: x.add_(torch.ones(5, requires_grad=True) * 2),
        lambda x: x.__setitem__(0, torch.ones((), requires_grad=True)),
        lambda x: x[2:].mul_(torch.ones(3, requires_grad=True)),
    ],
)
def test_a_field_made_live_is_found(make_live: Callable[[Tensor], Any], name: str) -> None:
    batch = step()
    make_live(getattr(batch, name))
    with pytest.raises(LiveGraphError) as caught:
        losses(batch)
    assert caught.value.field == name
    assert caught.value.expected == "no graph, as when the batch was built"


def test_a_live_write_through_the_callers_alias_is_found() -> None:
    mine = torch.tensor(OLD)
    batch = policy_batch(old_log_probs=mine).weighted("token-mean")
    mine.mul_(torch.ones(5, requires_grad=True))
    assert mine.requires_grad
    with pytest.raises((MutatedError, LiveGraphError)):
        losses(batch)


def test_edits_of_what_the_caller_still_holds_are_found() -> None:
    """The build shares storage: whoever edits it edits the batch."""
    table = torch.tensor([OLD, ADVANTAGES])
    batch = policy_batch(old_log_probs=table[0], advantages=table[1]).weighted("token-mean")
    table[1] -= 1.0
    with pytest.raises(MutatedError) as caught:
        losses(batch)
    assert {violation.field for violation in caught.value.violations} >= {"advantages"}


def test_an_optimizer_step_on_a_parameter_in_the_batch_is_found() -> None:
    parameter = nn.Parameter(torch.tensor(ADVANTAGES))
    batch = policy_batch(advantages=parameter).weighted("token-mean")
    (parameter.sum()).backward()
    torch.optim.SGD([parameter], lr=0.1).step()
    with pytest.raises(MutatedError):
        losses(batch)


def test_an_edit_is_found_in_every_relative_of_the_batch() -> None:
    batch = step()
    bound = batch.bind(log_probs=live())
    parts = batch.split(samples=1)
    first = parts[0].old_log_probs
    first[0] = -9.0
    for relative in (batch, bound, parts[0], parts[1]):
        with pytest.raises(MutatedError):
            relative.verify()


def test_values_that_a_repair_made_are_sealed_too() -> None:
    batch = policy_batch(loss_mask=MASK, advantages=torch.ones(1).expand(5)).weighted("token-mean")
    batch.loss_mask.logical_not_()
    batch.advantages.zero_()
    with pytest.raises(MutatedError) as caught:
        losses(batch)
    assert [violation.field for violation in caught.value.violations] == ["loss_mask", "advantages"]


def test_edits_that_torch_does_not_count_leave_no_trace() -> None:
    """The limit of the seal, pinned so that a change of it is noticed. No graph can enter this way."""
    batch = step()
    batch.advantages.data.mul_(2)
    batch.old_log_probs.numpy()[0] = -9.0
    batch.verify()
    assert batch.advantages.tolist() == [2 * advantage for advantage in ADVANTAGES]


USES: dict[str, Callable[[PolicyBatch], Any]] = {
    "extend": lambda batch: batch.extend(PolicyBatch, prompt_lengths=[1, 1]),
    "bind": lambda batch: batch.bind(log_probs=live()),
    "weighted": lambda batch: batch.weighted("token-mean"),
    "split": lambda batch: batch.split(samples=1),
    "select": lambda batch: batch.select([0]),
    "getitem": lambda batch: batch[0],
    "concat": lambda batch: PolicyBatch.concat([batch]),
    "merge": lambda batch: RolloutBatch(response_lengths=LENGTHS, loss_mask=MASK).merge(batch, PolicyBatch),
    "pad_to": lambda batch: batch.pad_to(3),
    "to": lambda batch: batch.to("cpu"),
    "verify": lambda batch: batch.verify(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_step_of_the_life_cycle_looks(use: Callable[[PolicyBatch], Any]) -> None:
    batch = step()
    batch.advantages.mul_(2)
    with pytest.raises(MutatedError):
        use(batch)


def test_iteration_looks_as_well() -> None:
    batch = step()
    batch.advantages.mul_(2)
    with pytest.raises(MutatedError):
        next(iter(batch))


def test_reading_and_training_break_no_seal() -> None:
    batch = step()
    for _ in range(3):
        losses(batch).backward()
        batch.summary()
        repr(batch)
        (batch.advantages * 2).exp_()
    batch.verify()


def test_trainable_fields_are_not_sealed() -> None:
    log_probs = live() * 1.0
    bound = step().bind(log_probs=log_probs)
    log_probs.mul_(1.5)
    bound.verify()
    policy_loss(bound, PPOClip()).backward()


def test_with_checks_off_a_live_field_still_gets_no_gradient() -> None:
    batch = step()
    factor = torch.ones(5, requires_grad=True)
    batch.old_log_probs.mul_(factor)
    with settings(level="off"):
        loss = losses(batch)
    loss.backward()
    assert factor.grad is None
    with pytest.raises(ContractError):
        batch.verify()
