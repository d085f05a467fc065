"""The boundary at a loss function: nobody calls it with inputs that were not validated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from rollout_contract.boundary.dicts import admit
from rollout_contract.boundary.names import PLAIN, Names
from rollout_contract.boundary.outputs import with_dead_metrics
from rollout_contract.errors import Violation, violation_error
from rollout_contract.schema.batch import RolloutBatch

P = ParamSpec("P")
OutputT = TypeVar("OutputT")


def contract(
    schema: type[RolloutBatch], names: Names = PLAIN, /, *, argument: str | None = None
) -> Callable[[Callable[P, OutputT]], Callable[P, OutputT]]:
    """Validate what a loss function is called with, and hand it inputs that are fit for a loss.

        @contract(PolicyBatch)
        def ppo(log_probs, old_log_probs, advantages, loss_mask, clip=0.2): ...

        @contract(PersistedBatch, MILES, argument="batch")
        def policy_loss_function(args, batch, logits, sum_of_sample_mean): ...

    The fixed fields of the schema reach the function without a graph, whoever calls it; the trainable ones must be live
    (while gradients are recorded). The signature stays as it was, and metrics that the function returns carry no graph:
    everything but the loss, which is the output itself, the first entry of a tuple, or what is called ``loss``.

    Args:
        schema: what the function reads.
        names: the parameters, or the keys of the dict, by field.
        argument: the parameter that holds the trainer's dict, which is put right as by ``guard``. None: the parameters
            themselves are the fields.

    Raises:
        SchemaError: at once, if the function has no such parameter, or none that is a field.
        ContractError: on a call, with every violation.
    """

    def decorate(function: Callable[P, OutputT]) -> Callable[P, OutputT]:
        signature = inspect.signature(function)
        _check_parameters(function, signature, schema, names, argument)
        extra = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> OutputT:
            bound = signature.bind(*args, **kwargs)
            if argument is not None:
                admit(bound.arguments[argument], schema, names, {}, must_be_live=True)
            else:
                # BoundArguments keeps what **kwargs took in a dict of its own.
                data = {**bound.arguments, **bound.arguments.get(extra or "", {})}
                admit(data, schema, names, {}, must_be_live=True)
                for name in bound.arguments:
                    bound.arguments[name] = data[name]
                if extra in bound.arguments:
                    bound.arguments[extra] = {name: data[name] for name in bound.arguments[extra]}
            return with_dead_metrics(function(*bound.args, **bound.kwargs))

        return guarded

    return decorate


def _check_parameters(
    function: Callable[..., Any],
    signature: inspect.Signature,
    schema: type[RolloutBatch],
    names: Names,
    argument: str | None,
) -> None:
    parameters = signature.parameters
    if argument is not None:
        if argument not in parameters:
            wrong = Violation(argument, "schema", f"one of the parameters {', '.join(parameters)}", argument)
            raise violation_error(getattr(function, "__qualname__", "contract"), wrong)
        return
    keys = {key.first for name in schema.__plan__ if (key := names.key(name)) is not None}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_any and not keys & set(parameters):
        hint = 'name the parameter that holds the trainer\'s dict: contract(..., argument="batch")'
        wrong = Violation(
            "parameters", "schema", f"a field of {schema.__name__} among them", ", ".join(parameters), hint
        )
        raise violation_error(getattr(function, "__qualname__", "contract"), wrong)
