"""The task: sort a string of digits. A program checks every answer, so the reward needs no judge.

A prompt is the digits and ``=``; the response is the same digits in order and ``.``, for example ``50259=`` and
``02559.``. The reward is 1 for the exact answer and 0 for anything else, including an answer that never ends.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCABULARY = "0123456789=."
END = VOCABULARY.index(".")

Tokens = list[int]


def encode(text: str) -> Tokens:
    return [VOCABULARY.index(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in tokens)


def answer(prompt: Tokens) -> Tokens:
    """The right response."""
    return [*sorted(prompt[:-1]), END]


def reward(prompt: Tokens, response: Tokens) -> float:
    return float(response == answer(prompt))


class SortTask:
    """Prompts of ``shortest`` to ``longest`` digits, drawn from a seed; a part of them is held out from training."""

    def __init__(self, shortest: int, longest: int, *, held_out: int, seed: int) -> None:
        self.shortest = shortest
        self.longest = longest
        self.random = random.Random(seed)
        self.held_out = [self._prompt() for _ in range(held_out)]
        self._never_trained = {decode(prompt) for prompt in self.held_out}

    @property
    def max_response_length(self) -> int:
        """Two tokens more than the longest right answer needs, so that a rambling policy is cut off."""
        return self.longest + 3

    @property
    def max_sequence_length(self) -> int:
        return self.longest + 1 + self.max_response_length

    def prompts(self, count: int) -> list[Tokens]:
        """Prompts to train on."""
        found: list[Tokens] = []
        while len(found) < count:
            prompt = self._prompt()
            if decode(prompt) not in self._never_trained:
                found.append(prompt)
        return found

    def sloppy_answer(self, prompt: Tokens, sloppiness: float) -> Tokens:
        """A demonstration: with this probability two neighbours in it are swapped."""
        right = answer(prompt)
        swaps = [i for i in range(len(right) - 2) if right[i] != right[i + 1]]
        if swaps and self.random.random() < sloppiness:
            i = self.random.choice(swaps)
            right[i], right[i + 1] = right[i + 1], right[i]
        return right

    def _prompt(self) -> Tokens:
        length = self.random.randint(self.shortest, self.longest)
        return encode("".join(self.random.choices("0123456789", k=length)) + "=")
