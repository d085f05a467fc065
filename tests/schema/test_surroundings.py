"""What usually happens around a loss: epochs, accumulation, checkpoints, autocast, torch.func, evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rollout_contract import PolicyBatch, RolloutBatch, policy_loss
from rollout_contract.objectives import GSPO, PPOClip
from rollout_contract.schemas import LiveBatch
from tests.schema.batches import live, policy_batch

LENGTHS = [3, 1, 0, 4, 2]
TOKENS = sum(LENGTHS)
MASK = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1, 1])
INPUTS = torch.randn(TOKENS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.arange(TOKENS) % 3


class Policy(nn.Module):
    """Three actions, from four features of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4))
            self.head.bias.zero_()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.head(inputs).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


def step_of(policy: Policy, *, inference: bool = False) -> PolicyBatch:
    with torch.inference_mode() if inference else torch.no_grad():
        old = policy(INPUTS, TARGETS)
    return PolicyBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        old_log_probs=old,
        advantages=torch.linspace(-1, 1, TOKENS, dtype=torch.float64),
    )


def gradients(policy: Policy) -> list[Tensor]:
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


@pytest.mark.parametrize("inference", [False, True])
def test_several_epochs_over_one_batch(inference: bool) -> None:
    policy = Policy()
    step = step_of(policy, inference=inference).weighted("token-mean")
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    values = []
    for _ in range(4):
        loss = policy_loss(step.bind(log_probs=policy(INPUTS, TARGETS)), PPOClip())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.value.item())
    assert values[0] > values[1] > values[3]
    step.verify()


def test_an_advantage_that_was_live_is_no_trouble_in_the_second_epoch() -> None:
    critic = nn.Linear(4, 1, dtype=torch.float64)
    policy = Policy()
    advantages = 1.0 - critic(INPUTS).squeeze(1)
    scored = step_of(policy)
    step = PolicyBatch(
        response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=scored.old_log_probs, advantages=advantages
    ).weighted("token-mean")
    for _ in range(3):
        policy_loss(step.bind(log_probs=policy(INPUTS, TARGETS)), PPOClip()).backward()
    assert critic.weight.grad is None


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "sum"])
@pytest.mark.parametrize("how", [{"samples": 1}, {"samples": 2}, {"max_tokens": 4}, {"max_tokens": 100}], ids=str)
@pytest.mark.parametrize("objective", [PPOClip(), GSPO()], ids=lambda o: o.name)
def test_gradient_accumulation_equals_the_full_batch(mode: Any, how: Any, objective: Any) -> None:
    whole, parts = Policy(), Policy()
    step = step_of(whole).weighted(mode)
    with torch.no_grad():
        for policy in (whole, parts):
            policy.head.bias += torch.tensor([0.1, -0.2, 0.05])
    loss = policy_loss(step.bind(log_probs=whole(INPUTS, TARGETS)), objective)
    loss.backward()
    value, start, merged = 0.0, 0, None
    for micro in step.split(**how):
        span = slice(start, start := start + micro.layout.num_tokens)
        part = policy_loss(micro.bind(log_probs=parts(INPUTS[span], TARGETS[span])), objective)
        part.backward()
        value += part.value.item()
        merged = part.metrics if merged is None else merged.merge(part.metrics)
    assert value == pytest.approx(loss.value.item(), rel=1e-12)
    for found, expected in zip(gradients(parts), gradients(whole), strict=True):
        assert torch.allclose(found, expected, rtol=1e-11, atol=1e-14)
    assert merged is not None
    assert merged.compute() == pytest.approx(loss.metrics.compute(), rel=1e-9)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("what", ["policy and loss", "loss"])
def test_checkpointing_around_the_loss(use_reentrant: bool, what: str) -> None:
    plain, saved = Policy(), Policy()
    step = step_of(plain).weighted("token-mean")
    policy_loss(step.bind(log_probs=plain(INPUTS, TARGETS)), PPOClip()).backward()

    def loss_of(log_probs: Tensor) -> Tensor:
        return policy_loss(step.bind(log_probs=log_probs), PPOClip()).value

    def both(inputs: Tensor) -> Tensor:
        return loss_of(saved(inputs, TARGETS))

    if what == "loss":
        value = checkpoint(loss_of, saved(INPUTS, TARGETS), use_reentrant=use_reentrant)
    else:
        value = checkpoint(both, INPUTS.clone().requires_grad_(), use_reentrant=use_reentrant)
    value.backward()
    for found, expected in zip(gradients(saved), gradients(plain), strict=True):
        assert torch.equal(found, expected)


def test_autocast_leaves_the_loss_in_float32() -> None:
    step = policy_batch().weighted("token-mean")
    log_probs = live()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = policy_loss(step.bind(log_probs=log_probs), PPOClip())
        rebuilt = policy_batch()
    loss.backward()
    expected = live()
    policy_loss(step.bind(log_probs=expected), PPOClip()).backward()
    assert loss.value.dtype == torch.float32
    assert rebuilt.old_log_probs.dtype == torch.float32
    assert log_probs.grad is not None
    assert expected.grad is not None
    assert torch.equal(log_probs.grad, expected.grad)


def test_functional_gradients() -> None:
    policy = Policy()
    step = step_of(policy).weighted("token-mean")
    parameters = {name: parameter.detach() for name, parameter in policy.named_parameters()}

    def loss_of(parameters: dict[str, Tensor]) -> Tensor:
        log_probs = torch.func.functional_call(policy, parameters, (INPUTS, TARGETS))
        return policy_loss(step.bind(log_probs=log_probs), PPOClip()).value

    found = torch.func.grad(loss_of)(parameters)
    policy_loss(step.bind(log_probs=policy(INPUTS, TARGETS)), PPOClip()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter.grad)


def test_a_functional_gradient_does_not_reach_a_fixed_field() -> None:
    log_probs = live()

    def loss_of(old: Tensor) -> Tensor:
        step = policy_batch(old_log_probs=old).weighted("token-mean")
        return policy_loss(step.bind(log_probs=log_probs), PPOClip()).value

    assert torch.func.grad(loss_of)(torch.full((5,), -1.0)).tolist() == [0.0] * 5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_and_then_training_on_the_same_batch(mode: Any) -> None:
    policy = Policy()
    step = step_of(policy).weighted("seq-mean-token-mean")
    with mode():
        evaluated = policy_loss(step.bind(log_probs=policy(INPUTS, TARGETS)), GSPO())
        inside = step_of(policy).weighted("token-mean")
    assert not evaluated.value.requires_grad
    assert evaluated.metrics.compute()
    for batch in (step, inside):
        policy.zero_grad()
        trained = policy_loss(batch.bind(log_probs=policy(INPUTS, TARGETS)), GSPO())
        trained.backward()
        assert gradients(policy)
    assert evaluated.value.item() == pytest.approx(
        policy_loss(step.bind(log_probs=policy(INPUTS, TARGETS)), GSPO()).value.item()
    )


def test_a_rank_without_scores_builds_the_base_schema() -> None:
    """A pipeline stage that computes no log-probs still holds lengths, masks and rows, and cuts them alike."""
    policy = Policy()
    scored = step_of(policy)
    bare = RolloutBatch(response_lengths=LENGTHS, loss_mask=MASK, row_ids=scored.row_ids)
    stage = LiveBatch(response_lengths=LENGTHS, loss_mask=MASK, row_ids=scored.row_ids)
    pairs = zip(bare.split(max_tokens=4), scored.split(max_tokens=4), strict=True)
    assert all(mine.row_ids == theirs.row_ids for mine, theirs in pairs)
    assert bare.weighted("token-mean").loss_weights.tolist() == scored.weighted("token-mean").loss_weights.tolist()
    assert not stage.has("log_probs")
    assert bare.merge(scored, PolicyBatch).old_log_probs.tolist() == scored.old_log_probs.tolist()


def test_one_update_per_batch_with_the_current_scores_as_old_ones() -> None:
    policy = Policy()
    log_probs = policy(INPUTS, TARGETS)
    step = PolicyBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        old_log_probs=log_probs.detach(),
        advantages=torch.linspace(-1, 1, TOKENS, dtype=torch.float64),
    ).weighted("token-mean")
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    found = gradients(policy)
    reference = Policy()
    weights = step.loss_weights * step.advantages
    (-(weights * reference(INPUTS, TARGETS))).sum().backward()
    for mine, expected in zip(found, gradients(reference), strict=True):
        assert torch.allclose(mine, expected)


def test_gradients_twice_through_one_loss() -> None:
    leaf = live()
    loss = policy_loss(policy_batch().weighted("token-mean").bind(log_probs=leaf), PPOClip())
    loss.backward(retain_graph=True)
    loss.backward()
    assert leaf.grad is not None
    single = live()
    policy_loss(policy_batch().weighted("token-mean").bind(log_probs=single), PPOClip()).backward()
    assert single.grad is not None
    assert leaf.grad.tolist() == (2 * single.grad).tolist()
