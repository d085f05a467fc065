"""What the contract costs, and what closed-form gradients save, each beside a peer. Run it with `make bench`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor

from benchmarks.timing import Comparison, compare
from rollout_contract import KLBatch, PolicyBatch, TISBatch, kl_loss, policy_loss, settings
from rollout_contract.advantages import gae, grpo
from rollout_contract.corrections import Truncate
from rollout_contract.kl import K3
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import GAEBatch, RewardBatch

SAMPLES, LENGTH = 512, 1024
TOKENS = SAMPLES * LENGTH


class Step(PolicyBatch, TISBatch, KLBatch):
    """What a GRPO step trains on."""


@dataclass(frozen=True)
class PlainStep:
    """The same fields, unchecked."""

    response_lengths: list[int]
    loss_mask: Tensor
    old_log_probs: Tensor
    rollout_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor


@jaxtyped(typechecker=beartype)
@dataclass(frozen=True)
class JaxtypedStep:
    """The same fields; shapes and dtypes are checked by jaxtyping and beartype."""

    response_lengths: list[int]
    loss_mask: Bool[Tensor, "tokens"]
    old_log_probs: Float[Tensor, "tokens"]
    rollout_log_probs: Float[Tensor, "tokens"]
    ref_log_probs: Float[Tensor, "tokens"]
    advantages: Float[Tensor, "tokens"]


def fields() -> dict[str, object]:
    """Scores of one step, from a fixed seed."""
    torch.manual_seed(0)
    old = -torch.rand(TOKENS)
    return {
        "response_lengths": [LENGTH] * SAMPLES,
        "loss_mask": torch.rand(TOKENS) > 0.1,
        "old_log_probs": old,
        "rollout_log_probs": (old + 0.02 * torch.randn(TOKENS)).clamp(max=0.0),
        "ref_log_probs": (old + 0.1 * torch.randn(TOKENS)).clamp(max=0.0),
        "advantages": torch.randn(TOKENS),
    }


def building() -> Iterator[Comparison]:
    """A batch of six fields."""
    given = fields()
    for level in ("structure", "values"):
        with settings(level=level):
            name = f"build of 6 fields, level {level}"
            yield compare(name, lambda: Step(**given), lambda: JaxtypedStep(**given), "a jaxtyped beartype dataclass")
    with settings(level="structure"):
        yield compare(
            "build of 6 fields, level structure", lambda: Step(**given), lambda: PlainStep(**given), "no check"
        )


def losses() -> Iterator[Comparison]:
    """Forward and backward, with the metrics that go with it."""
    given = fields()
    mask, old, rollout = given["loss_mask"], given["old_log_probs"], given["rollout_log_probs"]
    ref, advantages = given["ref_log_probs"], given["advantages"]
    current = (old + 0.1 * torch.randn(TOKENS)).clamp(max=0.0)
    step = Step(**given)
    step = step.corrected(Truncate(high=2.0)).weighted("token-mean")

    def subject() -> None:
        log_probs = current.clone().requires_grad_()
        batch = step.bind(log_probs=log_probs)
        (policy_loss(batch, PPOClip()) + 0.01 * kl_loss(batch, K3())).backward()

    def peer() -> None:
        log_probs = current.clone().requires_grad_()
        kept = mask.float()
        count = kept.sum()
        log_ratio = log_probs - old
        ratio = log_ratio.clamp(-20, 20).exp()
        unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)
        weights = (old - rollout).clamp(-20, 20).exp().clamp(max=2.0).detach()
        policy = (torch.maximum(unclipped, clipped) * weights * kept).sum() / count
        gap = ref - log_probs
        kl = ((gap.clamp(-20, 20).exp() - gap - 1).clamp(-10, 10) * kept).sum() / count
        with torch.no_grad():
            _ = ((clipped > unclipped) * kept).sum() / count, (-log_ratio * kept).sum() / count
        (policy + 0.01 * kl).backward()

    with settings(level="structure"):
        name = f"PPO clip + TIS + k3 and metrics, {TOKENS:,} tokens"
        yield compare(name, subject, peer, "the usual eager composition")


def life_cycle() -> Iterator[Comparison]:
    """What a micro-batch costs beside its losses."""
    step = Step(**fields()).weighted("token-mean")
    plain = step.loss_mask, step.old_log_probs, step.rollout_log_probs, step.ref_log_probs, step.advantages
    with settings(level="structure"):
        yield compare(
            "split into 64 micro-batches",
            lambda: step.split(samples=SAMPLES // 64),
            lambda: [tensor.split(TOKENS // 64) for tensor in plain],
            "splitting the bare tensors",
        )


def estimators() -> Iterator[Comparison]:
    """Advantages, beside a Python loop over samples."""
    rewards = torch.rand(SAMPLES)
    groups = [row // 8 for row in range(SAMPLES)]
    mask = torch.ones(TOKENS, dtype=torch.bool)
    batch = RewardBatch(response_lengths=[LENGTH] * SAMPLES, loss_mask=mask, group_ids=groups, rewards=rewards)

    def loop() -> Tensor:
        parts = []
        for group in rewards.split(8):
            parts += [((r - group.mean()) / (group.std() + 1e-6)).expand(LENGTH) for r in group]
        return torch.cat(parts)

    yield compare("GRPO advantages, 64 groups of 8", lambda: grpo(batch), loop, "a loop over samples")
    values, token_rewards = torch.randn(TOKENS), torch.randn(TOKENS)
    critic = GAEBatch(response_lengths=[LENGTH] * SAMPLES, loss_mask=mask, token_rewards=token_rewards, values=values)

    def sequential() -> Tensor:
        reward, value = token_rewards.view(SAMPLES, LENGTH), values.view(SAMPLES, LENGTH)
        last, following, found = torch.zeros(SAMPLES), torch.zeros(SAMPLES), []
        for t in reversed(range(LENGTH)):
            last = reward[:, t] + following - value[:, t] + 0.95 * last
            following = value[:, t]
            found.append(last)
        return torch.stack(found[::-1], 1)

    yield compare(f"GAE, {SAMPLES} x {LENGTH} tokens", lambda: gae(critic, lam=0.95), sequential, "a loop over time")


def imports() -> Iterator[Comparison]:
    """Import time, in fresh processes."""

    def run(module: str) -> None:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import {module}"], check=True, stderr=subprocess.DEVNULL
        )

    yield compare("import", lambda: run("rollout_contract"), lambda: run("torch, pydantic"), "torch and pydantic", 5)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':<52} {'ours':>12}  {'peer':>12}")
    for section in (building, life_cycle, losses, estimators, imports):
        for comparison in section():
            print(comparison, flush=True)


if __name__ == "__main__":
    main()
