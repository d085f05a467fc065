"""What every advantage estimator is: a function from a batch to fixed tensors, with an entry in the registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import Tensor

from rollout_contract.losses.inputs import require
from rollout_contract.roles import FixedTensor
from rollout_contract.schema.batch import RolloutBatch

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

Fraction: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
"""A discount or a decay."""

NonNegative: TypeAlias = Annotated[float, Field(ge=0.0)]

Singleton: TypeAlias = Literal["zero", "raw"]
"""What the only scored sample of its group gets: 0 (its reward equals the group's mean), or its raw reward.

verl's loop forms, and SkyRL's GRPO, take the raw reward; NeMo-RL, and SkyRL's RLOO, take 0.
"""


class AdvantagesAndReturns(NamedTuple):
    """What an estimator with a critic, or with a return of its own, gives.

    Attributes:
        advantages: [tokens], 0 at masked tokens.
        returns: [tokens], 0 at masked tokens: what the critic should have predicted.
    """

    advantages: FixedTensor
    returns: FixedTensor


@dataclass(frozen=True, slots=True)
class Estimator:
    """The registry's entry of one estimator.

    Attributes:
        name: of the function.
        function: the estimator.
        reads: the schema that a batch must have.
        formula: in plain text.
        paper: where it is defined.
        known_as: trainer -> the option that selects it there.
    """

    name: str
    function: Callable[..., Any]
    reads: type[RolloutBatch]
    formula: str
    paper: str
    known_as: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


ESTIMATORS: dict[str, Estimator] = {}
"""Every advantage estimator, by name."""


def estimator(
    *, formula: str, paper: str, known_as: Mapping[str, str] | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Make a function over a ``batch`` an estimator: checked, without a graph, and in the registry.

    The batch must have the schema that the function's annotation names, with whole seals; options outside their range
    are a ``pydantic.ValidationError``.
    """

    def register(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        name = function.__name__
        reads = inspect.signature(function, eval_str=True).parameters["batch"].annotation
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

        @wraps(function)
        def estimate(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            require(args[0] if args else kwargs.get("batch"), reads, name)
            with torch.no_grad():
                return checked(*args, **kwargs)

        ESTIMATORS[name] = Estimator(name, estimate, reads, formula, paper, MappingProxyType(dict(known_as or {})))
        return estimate

    return register


def fixed(tensor: Tensor) -> FixedTensor:
    """Say to the type checker what ``no_grad`` has made true."""
    return cast("FixedTensor", tensor)


def to_tokens(batch: RolloutBatch, per_sample: Tensor) -> FixedTensor:
    """[batch] -> [tokens]: each sample's entry on its trained tokens, 0 on masked ones."""
    return fixed(batch.layout.expand(per_sample).where(batch.loss_mask, 0.0))
