"""The sampler: a bfloat16 copy of slightly older weights, like an inference engine beside a trainer.

Its log-probs are its own: rounded, and up to a few updates behind. So the mismatch between rollout and trainer that
the demo corrects and plots is real.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from demo_support.policy import Policy
from demo_support.task import END, Tokens, reward


@dataclass(frozen=True)
class Rollout:
    """What an engine returns: token ids and log-probs as ragged lists, one row for each sample."""

    prompts: list[Tokens]
    responses: list[Tokens]
    log_probs: list[list[float]]

    @property
    def prompt_lengths(self) -> list[int]:
        return [len(prompt) for prompt in self.prompts]

    @property
    def response_lengths(self) -> list[int]:
        return [len(response) for response in self.responses]

    @property
    def input_ids(self) -> Tensor:
        """[sequence]: prompts and responses, end to end."""
        rows = zip(self.prompts, self.responses, strict=True)
        return torch.tensor([token for prompt, response in rows for token in (*prompt, *response)])

    @property
    def loss_mask(self) -> list[list[bool]]:
        """A response that was cut off before its end is not trained on: the policy never chose to stop there."""
        return [[response[-1] == END] * len(response) for response in self.responses]

    @property
    def rewards(self) -> list[float]:
        return [reward(prompt, response) for prompt, response in zip(self.prompts, self.responses, strict=True)]

    @property
    def mean_reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)


class Sampler:
    """Samples at temperature 1 from the weights of its last :meth:`sync`."""

    def __init__(self, policy: Policy, *, max_response_length: int, seed: int) -> None:
        self.max_response_length = max_response_length
        self.generator = torch.Generator().manual_seed(seed)
        self.sync(policy)

    def sync(self, policy: Policy) -> None:
        """Take over the trainer's weights, rounded to bfloat16."""
        self.policy = copy.deepcopy(policy).to(torch.bfloat16)

    @torch.inference_mode()
    def sample(self, prompts: list[Tokens]) -> Rollout:
        starts = torch.tensor([len(prompt) for prompt in prompts])
        width = int(starts.max()) + self.max_response_length
        tokens = torch.tensor([prompt + [END] * (width - len(prompt)) for prompt in prompts])
        log_probs = torch.zeros(tokens.shape)
        ends, rows = starts.clone(), torch.arange(len(prompts))
        for _ in range(self.max_response_length):
            logits = self.policy(tokens[rows, : int(ends.max())])[torch.arange(len(rows)), ends[rows] - 1]
            distribution = logits.float().log_softmax(-1)
            chosen = torch.multinomial(distribution.exp(), 1, generator=self.generator)
            tokens[rows, ends[rows]] = chosen.squeeze(-1)
            log_probs[rows, ends[rows]] = distribution.gather(-1, chosen).squeeze(-1)
            ends[rows] += 1
            rows = rows[chosen.squeeze(-1) != END]
            if not len(rows):
                break
        spans = [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return Rollout(
            prompts,
            responses=[row[span].tolist() for row, span in zip(tokens, spans, strict=True)],
            log_probs=[row[span].tolist() for row, span in zip(log_probs, spans, strict=True)],
        )
