"""What a term reads is said by its method, at run time as for a type checker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, Metrics, PolicyBatch, policy_loss
from rollout_contract.errors import MissingFieldError, SchemaError
from rollout_contract.losses.inputs import read
from rollout_contract.losses.term import Terms, TokenTerm, schema_of
from rollout_contract.objectives import OBJECTIVES, PPOClip
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import AdvantageBatch, KLBatch


class Plain:
    """The least that a loss takes."""

    def terms(self, batch: AdvantageBatch, /) -> Terms:
        return Terms(-read(batch, "advantages") * read(batch, "log_probs"), Metrics())


class Inherited(Plain):
    """The method, and what it reads, of its base."""


class Baselined(PolicyBatch):
    """A field of a user."""

    baselines: Fixed[Float[Tensor, "tokens"]]


@dataclass(frozen=True)
class Centered:
    """Options, another name for the batch, a schema of a user."""

    scale: float

    def terms(self, step: Baselined) -> Terms:
        gain = read(step, "advantages") - read(step, "baselines")
        return Terms(-self.scale * gain * read(step, "log_probs"), Metrics())


class Declared:
    """``reads`` is asked first, for a method that takes anything."""

    reads: ClassVar[type[RolloutBatch]] = KLBatch

    def terms(self, batch: Any, /) -> Terms:
        raise NotImplementedError


class Anything:
    def terms(self, batch: Any, /) -> Terms:
        raise NotImplementedError


class OfTensors:
    def terms(self, log_probs: Tensor, /) -> Terms:
        raise NotImplementedError


def step_of(schema: type[RolloutBatch], **fields: Any) -> Any:
    made: Any = schema
    step = made(response_lengths=[2, 1], loss_mask=torch.ones(3), advantages=[[1.0, 1.0], [-1.0]], **fields)
    return step.weighted("sum").bind(log_probs=torch.tensor([-1.0, -2.0, -3.0], requires_grad=True))


@pytest.mark.parametrize(
    ("term", "schema"),
    [
        (Plain(), AdvantageBatch),
        (Inherited(), AdvantageBatch),
        (Centered(1.0), Baselined),
        (Declared(), KLBatch),
        (PPOClip(), PolicyBatch),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_schema_is_what_the_method_takes(term: TokenTerm[Any], schema: type[RolloutBatch]) -> None:
    assert schema_of(term) is schema


def test_a_method_is_enough_for_a_loss() -> None:
    loss = policy_loss(step_of(AdvantageBatch), Plain())
    loss.backward()
    assert loss.value.item() == pytest.approx(1.0 + 2.0 - 3.0)


def test_the_fields_that_a_batch_lacks_are_named() -> None:
    with pytest.raises(MissingFieldError, match="PolicyBatch, which lacks baselines"):
        policy_loss(step_of(PolicyBatch, old_log_probs=torch.zeros(3)), Centered(2.0))


@pytest.mark.parametrize("term", [Anything(), OfTensors()], ids=["Any", "Tensor"])
def test_a_parameter_that_is_no_schema_is_refused(term: Any) -> None:
    with pytest.raises(SchemaError, match="a parameter annotated with the schema that is read"):
        policy_loss(step_of(AdvantageBatch), term)


@pytest.mark.parametrize("kind", OBJECTIVES.values(), ids=list(OBJECTIVES))
def test_an_objective_reads_at_least_what_its_method_takes(kind: type[Any]) -> None:
    class Bare:
        terms = kind.terms

    assert issubclass(kind().reads, schema_of(Bare()))


def test_a_schema_that_cannot_be_found_by_its_name_is_named() -> None:
    """String annotations of a function's own classes cannot be evaluated from outside of it."""

    class LocalStep(PolicyBatch):
        """Nobody outside of this function knows it."""

    class LocalTerm:
        def terms(self, batch: LocalStep, /) -> Terms:
            raise AssertionError("never called")

    with pytest.raises(SchemaError, match="LocalStep") as caught:
        schema_of(LocalTerm())
    assert "reads = " in caught.value.hint


AnyStep = TypeVar("AnyStep", bound=PolicyBatch)


def test_a_type_variable_stands_for_its_bound() -> None:
    class Generic:
        def terms(self, batch: AnyStep, /) -> Terms:
            raise AssertionError("never called")

    assert schema_of(Generic()) is PolicyBatch
