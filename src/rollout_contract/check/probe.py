"""One function under check, with its runs; each is made when a rule first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch

from rollout_contract.check.execute import execute, quiet
from rollout_contract.check.findings import Fault, Place
from rollout_contract.check.inputs import Inputs, make_inputs
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.setup import Setup
from rollout_contract.check.sizes import FIRST, SECOND, Sizes
from rollout_contract.check.subjects import Subject
from rollout_contract.corrections.correction import Correction
from rollout_contract.roles import Role

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says; name and subject are added by the runner."""

    place: Place
    expected: str
    found: str
    hint: str = ""

    def fault(self, rule: str, subject: str) -> Fault:
        return Fault(rule, subject, self.place, self.expected, self.found, self.hint)


class Probe:
    """A function, and its outcomes on whatever input a rule wants to see."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        # A correction is made before the forward pass: what it reads of the current policy is a fault.
        self._bound = subject.returns is not Correction
        self._memory: dict[Hashable, Any] = {}
        self._outcomes: dict[tuple[Setup, int, bool], Outcome] = {}

    def inputs(self, setup: Setup) -> Inputs:
        with quiet(setup.secret):
            return make_inputs(self.subject.parameters, setup)

    def setup(self, sizes: Sizes = FIRST, **options: Any) -> Setup:
        """How input is made, see :class:`Setup`."""
        return Setup(sizes, bound=self._bound, **options)

    def run(self, setup: Setup, *, seed: int = 0, watched: bool = False) -> Outcome:
        """The outcome on input of this setup."""
        key = setup, seed, watched
        if key not in self._outcomes:
            inputs = self.inputs(setup)
            self._outcomes[key] = execute(self.subject.call, inputs, self.subject.home, seed=seed, watched=watched)
        return self._outcomes[key]

    def run_rows(self, setup: Setup, cuts: Sequence[Sequence[int]]) -> tuple[list[Outcome], Inputs]:
        """The outcomes on rows taken out of one input."""
        whole = self.inputs(setup)
        with quiet(setup.secret):
            parts = [whole.take(rows) for rows in cuts]
        return [execute(self.subject.call, part, self.subject.home) for part in parts], whole

    @cached_property
    def first(self) -> Outcome:
        return self.run(self.setup(FIRST), watched=True)

    @cached_property
    def second(self) -> Outcome:
        return self.run(self.setup(SECOND), watched=True)

    @property
    def runs(self) -> bool:
        """Whether the function returns on ordinary input; the other rules need that."""
        return self.first.error is None and self.second.error is None

    @cached_property
    def is_loss(self) -> bool:
        """Declared as one, called one, or a scalar that carries a graph."""
        if self.subject.declared or not self.subject.is_in_contract:
            return self.subject.declared
        value = self.first.loss
        return value is not None and (value.requires_grad or "loss" in self.subject.name.rpartition(":")[2].lower())

    @cached_property
    def is_random(self) -> bool:
        """Whether another seed gives another result."""
        mine, other = self.first.everything(), self.run(self.setup(FIRST), seed=1).everything()
        return mine.keys() != other.keys() or not all(_same(mine[name], other[name]) for name in mine)

    def trainable(self, outcome: Outcome) -> list[str]:
        return [name for name, given in outcome.inputs.tensors.items() if given.role is Role.TRAINABLE]

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute`` gives, for rules that share it."""
        if key not in self._memory:
            self._memory[key] = compute()
        found: T = self._memory[key]
        return found

    # -- places ----------------------------------------------------------------------------------------------------

    def at(self, place: Place | None) -> Place:
        """The place if there is one, else that of the function."""
        return place or self.subject.place

    def at_input(self, name: str) -> Place:
        """Where the function reads an input."""
        return self.at(self.reading(name))

    def reading(self, name: str) -> Place | None:
        """Where the function reads an input, if that is in its source."""
        owner, _, field = name.rpartition(".")
        return self.subject.source.reading(field, owner)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, equal_nan=True)
