"""A check: find what there is, run the rules on it, and collect what they say."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from rollout_contract.check.failure import show_error
from rollout_contract.check.findings import CannotCheckError, Fault, Place, Report, Unchecked
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.rules import RULES, SCHEMA_RULE
from rollout_contract.check.subjects import AnySubject, SchemaSubject, find
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
    for target in targets:
        for item in _found(target):
            name = item.subject if isinstance(item, Unchecked | Fault) else item.name
            if any(fnmatchcase(name, pattern) for pattern in exclude):
                continue
            if isinstance(item, Unchecked | Fault):
                collector.add(item)
            elif name not in seen:
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
        with contextlib.redirect_stdout(sys.stderr):
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
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "rollout_contract" not in frame.filename.rpartition("src")[2]
        and not frame.filename.startswith("<")
        and "importlib" not in frame.filename
    ]
    return Place(frames[-1].filename, frames[-1].lineno or 0) if frames else Place("", 0)


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
    probe = Probe(subject)
    try:
        probe.inputs(probe.setup())
    except (CannotCheckError, ContractError) as error:
        return [], [Unchecked(subject.name, subject.place, f"no input can be made for it: {error}")]
    findings: dict[str, list[Finding]] = {}
    reasons: list[Unchecked] = []
    explained: set[str] = set()
    for name in RULES:
        if name in explained:
            continue
        try:
            findings[name] = list(RULES[name].find(probe)) if name in rules or RULES[name].explains else []
        except CannotCheckError as error:
            reasons.append(Unchecked(subject.name, subject.place, f"rule {name}: {error}"))
            continue
        except Exception as error:
            # A result that a rule did not foresee shall not cost the findings about everything else.
            reasons.append(Unchecked(subject.name, subject.place, f"rule {name} itself failed: {show_error(error)}"))
            continue
        if findings[name]:
            explained |= set(RULES[name].explains)
    wanted = [(name, finding) for name, found in findings.items() if name in rules for finding in found]
    return [finding.fault(name, subject.name) for name, finding in wanted], reasons
