"""What every policy objective is: a frozen configuration that turns a batch into one loss per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rollout_contract.metrics import Metrics
from rollout_contract.schema.batch import RolloutBatch

Consumption: TypeAlias = Literal["multiplies", "inside", "ignores", "refuses"]
"""What an objective does with importance weights of the batch.

``multiplies``: each token's loss is multiplied by its weight. ``inside``: the objective uses them in its own formula.
``ignores``: it is a term beside the policy gradient, as a KL is, and leaves them to that.
``refuses``: its ratio is already taken against the policy that made the rollouts, so a weight would count it twice.
"""


class Terms(NamedTuple):
    """An objective's loss per token, before any weight, and its metrics."""

    loss: Tensor
    metrics: Metrics


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

    model_config = ConfigDict(frozen=True, extra="forbid")

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


BatchT_contra = TypeVar("BatchT_contra", bound=RolloutBatch, contravariant=True)


class PolicyObjective(Protocol[BatchT_contra]):
    """What ``policy_loss`` takes: any :class:`Objective`, or an object of your own with these members.

    The batch that ``terms`` accepts says what the objective reads; a type checker refuses a batch without it.
    """

    @property
    def reads(self) -> type[RolloutBatch]: ...

    @property
    def correction(self) -> Consumption: ...

    def terms(self, batch: BatchT_contra, /) -> Terms: ...
