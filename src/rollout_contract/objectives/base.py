"""What every policy objective is: a frozen configuration that turns a batch into one loss per token."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from rollout_contract.losses.loss import Consumption as Consumption
from rollout_contract.losses.term import LossTerm
from rollout_contract.losses.term import Terms as Terms


class Objective(LossTerm, ABC):
    """A policy objective. Subclass it, one small file each, and name the schema that it reads.

    Attributes:
        name, formula, paper, known_as, reads: as in :class:`LossTerm`.
        correction: what it does with importance weights of the batch.
        batch_statistics: whether it reads live statistics over the micro-batch, so that a split changes it.
    """

    correction: ClassVar[Consumption] = "multiplies"
    batch_statistics: ClassVar[bool] = False
