"""Contracts as assertions: what ``rollout-contract check`` looks at, from a test of one function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from rollout_contract.check.config import rule_name
from rollout_contract.check.findings import Report
from rollout_contract.check.parameters import Parameter, return_annotation
from rollout_contract.check.report.text import as_text
from rollout_contract.check.rules import RULES
from rollout_contract.check.run import check_subject
from rollout_contract.check.subjects import Subject, subject_of_terms
from rollout_contract.corrections.correction import Correction
from rollout_contract.losses.term import TokenTerm
from rollout_contract.schema.batch import RolloutBatch


def assert_loss_contract(
    function: Callable[..., Any] | TokenTerm[Any], schema: type[RolloutBatch], *, ignore: Collection[str] = ()
) -> None:
    """Assert that a loss keeps its contract on synthetic batches of ``schema``.

    It runs on shapes of distinct primes and on the edges; no fixed field may be differentiated through and every
    trainable one must be; masked tokens, splits and permutations change nothing; metrics carry no graph; nothing is
    edited in place; and so on: ``rollout-contract rules`` lists all of it.

    Args:
        function: takes a batch as its only required argument (fill in others with ``functools.partial``) and returns
            a Loss, a scalar tensor, or a tuple of one and a dict of metrics. An objective is taken as well.
        schema: what the function gets.
        ignore: names of rules to leave out.

    Raises:
        AssertionError: with every broken rule, where, expected and found; also if a rule could not be checked.
    """
    _assert_clean(_loss_subject(function, schema), ignore, "of a loss")


def assert_correction_contract(
    function: Callable[..., Any], schema: type[RolloutBatch], *, ignore: Collection[str] = ()
) -> None:
    """Assert that a correction keeps its contract on synthetic batches of ``schema``.

    Its batch is not bound: a correction is made before the forward pass and does not see the current policy. The result
    is a Correction for the batch's own rows; masked tokens change nothing, and weights and mask go with their tokens
    when samples change places.

    Args:
        function: takes a batch as its only required argument and returns a Correction.
        schema: what the function gets.
        ignore: names of rules to leave out.

    Raises:
        AssertionError: with every broken rule, where, expected and found; also if a rule could not be checked.
    """
    subject = _subject(function, schema, returns=Correction, declared=False)
    _assert_clean(subject, ignore, "of a correction")


def _loss_subject(function: Any, schema: type[RolloutBatch]) -> Subject:
    if callable(getattr(function, "terms", None)):
        kind = type(function)
        return subject_of_terms(f"{kind.__module__}:{kind.__qualname__}", function, schema, None)
    code = _code(function)
    return _subject(function, schema, returns=return_annotation(code), declared=True)


def _subject(function: Callable[..., Any], schema: type[RolloutBatch], *, returns: Any, declared: bool) -> Subject:
    code = _code(function)
    name = next(iter(inspect.signature(function).parameters), "batch")
    batch = Parameter(name, inspect.Parameter.POSITIONAL_ONLY, schema=schema)
    label = getattr(code, "__qualname__", type(function).__qualname__)
    return Subject(f"{code.__module__}:{label}", function, code, (batch,), returns, declared)


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose source the caller wrote: inside a partial, or the ``__call__`` of an object."""
    plain = function.func if isinstance(function, partial) else function
    plain = inspect.unwrap(plain)
    return plain if inspect.isroutine(plain) else type(plain).__call__


def _assert_clean(subject: Subject, ignore: Collection[str], kind: str) -> None:
    left_out = {rule_name(name) for name in ignore}
    faults, unchecked = check_subject(subject, [name for name in RULES if name not in left_out])
    if faults or unchecked:
        text = as_text(Report(tuple(faults), tuple(unchecked), (subject.name,), 0.0))
        raise AssertionError(f"{subject.name} breaks the contract {kind}:\n\n{text}")
