"""A check: find what there is, run the rules on it, and collect what they say."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from rollout_contract.check.execute import uncompiled
from rollout_contract.check.failure import show_error
from rollout_contract.check.findings import CannotCheckError, Fault, Place, Report, Unchecked
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.probe import Probe
from rollout_contract.check.rules import RULES, SCHEMA_RULE
from rollout_contract.check.subjects import AnySubject, SchemaSubject, Subject, find
from rollout_contract.errors import ContractError, SchemaError

Progress = Callable[[str], None]


def check(
    *targets: str,
    only: Collection[str] = (),
    ignore: Collection[str] = (),
    exclude: Collection[str] = (),
    fail_fast: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check schemas and functions, as the command ``rollout-contract check`` does.

    Args:
        targets: modules, packages, or ``module:name``. They are imported, and their functions are run on tiny synthetic
            batches on the CPU.
        only: names of the rules to look at; all when empty.
        ignore: names of rules to leave out.
        exclude: patterns of subjects to leave out, such as ``mytrainer.losses:*_with_model``.
        fail_fast: stop at the first fault.
        progress: is called with the name of each subject.

    Returns:
        Faults, and what could not be checked. Nothing is raised for either.
    """
    started = time.perf_counter()
    collector = _Collector(_chosen(only, ignore), fail_fast)
    seen: set[str] = set()
    with contextlib.redirect_stdout(sys.stderr):
        for item in itertools.chain.from_iterable(map(_found, targets)):
            name = item.subject if isinstance(item, Unchecked | Fault) else item.name
            if name in seen or any(fnmatchcase(name, pattern) for pattern in exclude):
                continue
            if isinstance(item, Unchecked | Fault):
                collector.add(item)
            else:
                seen.add(name)
                if progress is not None:
                    progress(name)
                collector.check(item)
            if collector.is_done:
                break
    return collector.report(time.perf_counter() - started)


def _chosen(only: Collection[str], ignore: Collection[str]) -> list[str]:
    return [name for name in (SCHEMA_RULE, *RULES) if (not only or name in only) and name not in ignore]


def _found(target: str) -> Iterator[AnySubject | Unchecked | Fault]:
    """What a target holds; a schema that does not compile is a fault, any other failed import is a reason."""
    try:
        yield from find(target)
    except CannotCheckError as error:
        yield Unchecked(target, Place("", 0), str(error))
    except SchemaError as error:
        for violation in error.violations:
            expected, found = f"{violation.field}: {violation.expected}", violation.found
            yield Fault(SCHEMA_RULE, f"{target}:{error.subject}", _last_place(error), expected, found, violation.hint)
    except (Exception, SystemExit) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        yield Unchecked(target, _last_place(error), f"import failed: {type(error).__name__}: {first}")


def _last_place(error: BaseException) -> Place:
    """Where the module under check was when its import failed."""
    return line_of_error(error, home="") or Place("", 0)


class _Collector:
    """Faults and reasons, in the order in which they are found."""

    def __init__(self, rules: Sequence[str], fail_fast: bool) -> None:
        self._rules = rules
        self._fail_fast = fail_fast
        self._faults: list[Fault] = []
        self._unchecked: list[Unchecked] = []
        self._checked: list[str] = []

    @property
    def is_done(self) -> bool:
        return self._fail_fast and bool(self._faults)

    def add(self, item: Fault | Unchecked) -> None:
        if isinstance(item, Unchecked):
            self._unchecked.append(item)
        elif item.rule in self._rules:
            self._faults.append(item)

    def check(self, subject: AnySubject) -> None:
        faults, reasons = check_subject(subject, self._rules)
        self._checked.append(subject.name)
        self._faults += faults
        self._unchecked += reasons

    def report(self, seconds: float) -> Report:
        faults = sorted(self._faults, key=lambda fault: (fault.place, fault.rule))
        kept = faults[:1] if self._fail_fast else faults
        return Report(tuple(kept), tuple(self._unchecked), tuple(self._checked), seconds)


def check_subject(subject: AnySubject, rules: Collection[str]) -> tuple[list[Fault], list[Unchecked]]:
    """Run the rules on one function or schema."""
    if isinstance(subject, SchemaSubject):
        found = [(n, f) for n in rules if n in RULES for f in RULES[n].find_in_schema(subject)]
        return [finding.fault(name, subject.name) for name, finding in found], []
    with uncompiled():
        return _check_function(subject, rules)


def _check_function(subject: Subject, rules: Collection[str]) -> tuple[list[Fault], list[Unchecked]]:
    probe = Probe(subject)
    try:
        probe.inputs(probe.setup())
    except (CannotCheckError, ContractError) as error:
        return [], [Unchecked(subject.name, subject.place, f"no input can be made for it: {error}")]
    faults: list[Fault] = []
    reasons: list[Unchecked] = []
    explained: set[str] = set()
    for rule in (RULES[name] for name in RULES if name in rules):
        if rule.name in explained:
            continue
        try:
            found = [finding.fault(rule.name, subject.name) for finding in rule.find(probe)]
        except CannotCheckError as error:
            reasons.append(Unchecked(subject.name, subject.place, f"rule {rule.name}: {error}"))
            continue
        except Exception as error:
            # A result that a rule did not foresee shall not cost the findings about everything else.
            reason = f"rule {rule.name} itself failed: {show_error(error)}"
            reasons.append(Unchecked(subject.name, subject.place, reason))
            continue
        faults += found
        explained |= set(rule.explains if found else ())
    return faults, reasons
