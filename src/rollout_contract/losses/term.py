"""What a loss is made of: an object that turns a batch into one number per token."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, get_type_hints, runtime_checkable

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.errors import Violation, violation_error
from rollout_contract.losses.inputs import require
from rollout_contract.losses.loss import Consumption, Loss, weighted_sum
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.schema.batch import RolloutBatch

BatchT = TypeVar("BatchT", bound=RolloutBatch)
BatchT_contra = TypeVar("BatchT_contra", bound=RolloutBatch, contravariant=True)


class Terms(NamedTuple):
    """A loss per token, before any weight, and its metrics.

    Attributes:
        loss: [tokens], finite everywhere, whatever it is at masked-out tokens.
        metrics: detached.
    """

    loss: Tensor
    metrics: Metrics


@runtime_checkable
class TokenTerm(Protocol[BatchT_contra]):
    """What the loss functions take: a configuration of this library, or an object of your own with this method.

    The batch that ``terms`` accepts says what the term reads; a type checker refuses a batch without it, and so does
    the loss function at run time.
    """

    def terms(self, batch: BatchT_contra, /) -> Terms: ...


class LossTerm(BaseModel, ABC):
    """A term as a frozen configuration, with what its documentation needs. Objectives, KL estimators, divergences.

    Attributes:
        name: the name in its registry.
        formula: the loss per token, in plain text.
        paper: where it is defined.
        known_as: trainer -> the option that selects it there.
        reads: the schema that a batch must have.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    known_as: ClassVar[Mapping[str, str]]
    reads: ClassVar[type[RolloutBatch]]

    @abstractmethod
    def terms(self, batch: Any, /) -> Terms:
        """The term of every token: [tokens], finite everywhere, whatever it is at masked-out tokens."""


def schema_of(term: TokenTerm[Any]) -> type[RolloutBatch]:
    """The schema that a term reads: its attribute ``reads``, or the annotation of its method's parameter."""
    declared: type[RolloutBatch] | None = getattr(term, "reads", None)
    if declared is not None:
        return declared
    parameter = next(iter(inspect.signature(term.terms).parameters))
    hint = "def terms(self, batch: MyStep, /) -> Terms"
    try:
        annotated = get_type_hints(type(term).terms).get(parameter)
    except NameError as error:
        hint = "define the schema at the top of a module, or name it on the class: reads = MyStep"
        wrong = Violation("terms", "schema", "an annotation that can be evaluated", str(error), hint)
        raise violation_error(type(term).__name__, wrong) from error
    # A type variable stands for any schema that has what its bound has.
    annotated = getattr(annotated, "__bound__", annotated)
    if not (isinstance(annotated, type) and issubclass(annotated, RolloutBatch)):
        wrong = Violation("terms", "schema", "a parameter annotated with the schema that is read", f"{annotated}", hint)
        raise violation_error(type(term).__name__, wrong)
    return annotated


def token_loss(reader: str, batch: BatchT, term: TokenTerm[BatchT], correction: Consumption) -> Loss:
    """The sum over tokens of weight x term, with the metrics of the term and the loss itself under ``reader``.

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field that the term reads.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
        CorrectionError: the batch carries importance weights, which the term refuses.
    """
    require(batch, schema_of(term), reader)
    if correction == "refuses" and batch.has("correction_weights"):
        hint = "use an objective that takes a correction, or do not correct the batch"
        found = f"{type(term).__name__}, which contains its own importance weight"
        wrong = Violation("correction_weights", "correction", "an objective that applies them", found, hint)
        raise violation_error(reader, wrong)
    terms = term.terms(batch)
    loss = weighted_sum(batch, terms.loss, terms.metrics, correction)
    own = Metric("sum", metrics.parts(loss.value.detach()))
    return Loss(loss.value, loss.metrics.merge({reader: own}), loss.has_correction, loss.used_correction)
