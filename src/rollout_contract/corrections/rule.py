"""What the built-in corrections share: a frozen configuration that is called with a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rollout_contract.corrections.correction import Correction
from rollout_contract.losses.inputs import read, require
from rollout_contract.mismatch import samples_with
from rollout_contract.schemas import TISBatch

AnyRule: TypeAlias = Callable[[Any], Correction]
"""A correction is any callable from a batch to a :class:`Correction`; the schema it annotates is what it needs."""

Level: TypeAlias = Literal["token", "sequence", "geometric"]
"""One ratio per token; per sequence the product of its ratios; per sequence their geometric mean."""


class CorrectionRule(BaseModel, ABC):
    """A frozen configuration that computes a :class:`Correction` from a batch.

    ``a & b`` applies both to the same batch, so neither sees what the other dropped and the order does not matter.

    Attributes:
        name, formula, paper, known_as: as in ``rollout_contract.objectives.base.Objective``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    known_as: ClassVar[Mapping[str, str]]

    @abstractmethod
    def __call__(self, batch: TISBatch, /) -> Correction:
        """Compute the correction. The batch is left as it is."""

    def __and__(self, other: AnyRule) -> Combined:
        return Combined(rules=(self, other))


class Combined(CorrectionRule):
    """Several corrections of one batch: weights multiply, a token stays if every rule keeps it.

    Attributes:
        rules: callables from the batch to a :class:`Correction`.
    """

    name = "combined"
    formula = "w = product of the weights; the mask is the intersection"
    paper = "https://fengyao.notion.site/off-policy-rl"
    known_as: ClassVar[Mapping[str, str]] = {}

    rules: tuple[AnyRule, ...]

    def __call__(self, batch: TISBatch, /) -> Correction:
        return reduce(and_, [rule(batch) for rule in self.rules], Correction(batch))


def log_ratio(batch: TISBatch, reader: CorrectionRule) -> Tensor:
    """[tokens] ``old_log_probs - rollout_log_probs`` in nats, 0 on masked tokens. The current policy is not in it.

    Raises:
        MissingFieldError: ``reader`` was given a batch of another schema.
        MutatedError, LiveGraphError: a field was edited after it was validated.
    """
    require(batch, TISBatch, type(reader).__name__)
    old_log_probs = read(batch, "old_log_probs")
    return old_log_probs - read(batch, "rollout_log_probs", like=old_log_probs)


def at_level(batch: TISBatch, per_token: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Log-ratios (0 where the mask is off) per token, or their sum or mean per sample; and which of these exist."""
    mask: Tensor = batch.loss_mask
    if level == "token":
        return per_token, mask
    layout = batch.layout
    per_sample = layout.sum(per_token) if level == "sequence" else layout.mean(per_token, mask)
    return per_sample, samples_with(batch, mask)


def to_tokens(batch: TISBatch, values: Tensor, level: Level) -> Tensor:
    """What :func:`at_level` gave, one entry for each token again."""
    return values if level == "token" else batch.layout.expand(values)
