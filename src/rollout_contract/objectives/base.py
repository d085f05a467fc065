"""What every policy objective is: a frozen configuration that turns a batch into one loss per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollout_contract.losses.loss import Consumption as Consumption
from rollout_contract.losses.term import Terms as Terms
from rollout_contract.schema.batch import RolloutBatch


class Objective(BaseModel, ABC):
    """A policy objective. Subclass it, one small file each, and name the schema that it reads.

    Attributes:
        name: the name in the registry.
        formula: the loss per token, in plain text.
        paper: where it is defined.
        known_as: trainer -> the option that selects it there.
        reads: the schema that a batch must have.
        correction: what it does with importance weights of the batch.
        batch_statistics: whether it reads live statistics over the micro-batch, so that a split changes it.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    known_as: ClassVar[Mapping[str, str]]
    reads: ClassVar[type[RolloutBatch]]
    correction: ClassVar[Consumption] = "multiplies"
    batch_statistics: ClassVar[bool] = False

    @abstractmethod
    def terms(self, batch: Any, /) -> Terms:
        """The loss of every token: [tokens], finite everywhere, whatever it is at masked-out tokens."""
