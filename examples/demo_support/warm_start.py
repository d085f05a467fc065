"""A short supervised start on sloppy demonstrations: the policy learns to sort, and to make their mistakes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from demo_support.config import DemoConfig
from demo_support.policy import Policy
from demo_support.task import END, SortTask, Tokens

IGNORE = -100


def warm_start(policy: Policy, task: SortTask, config: DemoConfig, steps: int) -> Iterator[float]:
    """Train with cross-entropy on the response tokens; yields the loss of each step, in nats."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.warm_start_rate)
    for _ in range(steps):
        prompts = task.prompts(config.warm_start_batch)
        answers = [task.sloppy_answer(prompt, config.sloppiness) for prompt in prompts]
        tokens, targets = next_token_targets(prompts, answers)
        loss = functional.cross_entropy(policy(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def next_token_targets(prompts: list[Tokens], answers: list[Tokens]) -> tuple[Tensor, Tensor]:
    """[batch, width] token ids, and the token to predict at each position, or ``IGNORE``."""
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens = torch.full((len(prompts), width), END)
    targets = torch.full((len(prompts), width), IGNORE)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        targets[row, len(prompt) - 1 : end - 1] = torch.tensor(answer)
    return tokens, targets
