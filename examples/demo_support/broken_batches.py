"""Six batches with mistakes that real training code makes, fed to the contract. It must refuse every one of them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from demo_support.config import DemoConfig
from demo_support.grpo import GRPO
from demo_support.policy import Policy, score, score_fixed
from demo_support.sampler import Rollout
from demo_support.task import encode
from demo_support.trainer import sampled_batch
from rollout_contract import ContractError, Fixed, policy_loss, settings
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import AdvantageBatch, RolloutScored, Scored


@dataclass(frozen=True)
class BrokenBatch:
    """A mistake, what it does where nobody checks, and what the contract says about it."""

    mistake: str
    unchecked: str
    error: str

    def wrapped_error(self, width: int) -> str:
        """The error with long lines continued below their second column."""
        indent = " " * len("    expected  ")
        lines = (textwrap.wrap(line, width, subsequent_indent=indent) or [""] for line in self.error.splitlines())
        return "\n".join(part for parts in lines for part in parts)


class UntaggedTeacherBatch(Scored):
    """A schema whose author did not tag the teacher's scores ``AnyDevice``, as ``OPDBatch`` does."""

    teacher_log_probs: Fixed[Float[Tensor, "tokens"]]


class Example:
    """Four answers to one prompt, as an engine would return them, to make mistakes with."""

    def __init__(self, policy: Policy, config: DemoConfig) -> None:
        prompt = encode("50259=")
        responses = [encode(text) for text in ("02559.", "02595.", "20559.", "02559.")]
        log_probs = [[-0.1] * len(response) for response in responses]
        self.rollout = Rollout([prompt] * len(responses), responses, log_probs)
        self.grpo = GRPO(policy, replace(config, samples_per_prompt=len(responses)))
        self.policy = policy
        self.sampled = sampled_batch(self.rollout, group_size=len(responses))

    @property
    def shape(self) -> Mapping[str, Any]:
        """What every batch needs."""
        return {"response_lengths": self.sampled.response_lengths, "loss_mask": self.sampled.loss_mask}


def live_old_log_probs(example: Example) -> None:
    live = score(example.policy, example.sampled).log_probs
    with settings(live_inputs="refuse"):
        Scored(**example.shape, old_log_probs=live)


def teacher_on_another_device(example: Example) -> None:
    log_probs = score_fixed(example.policy, example.sampled)
    elsewhere = log_probs.to("cuda" if torch.cuda.is_available() else "meta")
    UntaggedTeacherBatch(**example.shape, old_log_probs=log_probs, teacher_log_probs=elsewhere)


def advantages_per_sample(example: Example) -> None:
    rewards = example.sampled.rewards
    AdvantageBatch(**example.shape, advantages=rewards - rewards.mean())


def mask_that_did_not_grow(example: Example) -> None:
    resumed, more = 1, [-0.1, -0.2, -0.1]
    log_probs = [row + more if i == resumed else row for i, row in enumerate(example.rollout.log_probs)]
    lengths = [len(row) for row in log_probs]
    RolloutScored(response_lengths=lengths, loss_mask=example.rollout.loss_mask, rollout_log_probs=log_probs)


def nan_on_a_trained_token(example: Example) -> None:
    log_probs = [list(row) for row in example.rollout.log_probs]
    log_probs[2][3] = math.nan
    RolloutScored(**example.shape, rollout_log_probs=log_probs)


def field_edited_in_place(example: Example) -> None:
    batch = example.grpo.batch(example.rollout).weighted("token-mean")
    batch = batch.bind(log_probs=score(example.policy, batch).log_probs)
    batch.advantages.clamp_(-1.0, 1.0)
    policy_loss(batch, PPOClip())


MISTAKES: Mapping[str, tuple[str, Callable[[Example], None]]] = {
    "Live old log-probs": (
        "Both sides of the ratio carry the gradient: it cancels to exactly zero, and the loss looks as always. A build "
        'cuts such a graph silently by default; settings(live_inputs="refuse") finds who made it.',
        live_old_log_probs,
    ),
    "A teacher on another device": (
        "The step dies in the middle of the loss, after the rollouts were paid for.",
        teacher_on_another_device,
    ),
    "One advantage per sample where one per token belongs": (
        "In padded tensors it broadcasts along the wrong axis as soon as batch and width are equal.",
        advantages_per_sample,
    ),
    "A resumed response whose mask did not grow": (
        "From there on, every token is trained under the mask of another one.",
        mask_that_did_not_grow,
    ),
    "NaN on a trained token": (
        "The loss is NaN, and after one update so is every weight.",
        nan_on_a_trained_token,
    ),
    "A field edited in place after it was validated": (
        "The second pass over the batch trains on other numbers than the first.",
        field_edited_in_place,
    ),
}


def feed_broken_batches(policy: Policy, config: DemoConfig) -> list[BrokenBatch]:
    """Make all six mistakes and collect the errors."""
    example = Example(policy, config)
    found = []
    for mistake, (unchecked, make) in MISTAKES.items():
        try:
            make(example)
        except ContractError as error:
            found.append(BrokenBatch(mistake, unchecked, f"{type(error).__name__}: {error}"))
        else:
            raise RuntimeError(f"the contract accepted a broken batch: {mistake}")
    return found
