"""Every seeded fault is reported at its line with its rule, and nothing else is."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from rollout_contract.check import Report, check

FOLDER = Path(__file__).parent / "faults"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
MARK = re.compile(r"# fault(-at-def)?: ([\w, -]+)$")
FUNCTION = re.compile(r"^(?:def|class) (\w+)|^(\w+) = ")


def seeds(module: str) -> dict[str, set[tuple[int, str]]]:
    """The marks of each function (or class, or object) of a module: its lines and rules.

    ``fault-at-def`` closes a signature of several lines; the fault is reported at its first.
    """
    found: dict[str, set[tuple[int, str]]] = defaultdict(set)
    name, at = "", 0
    for number, line in enumerate((FOLDER / f"{module}.py").read_text().splitlines(), start=1):
        start = FUNCTION.match(line)
        if start:
            name, at = start[1] or start[2], number
        mark = MARK.search(line)
        if mark:
            found[name] |= {(at if mark[1] else number, rule.strip()) for rule in mark[2].split(",")}
    return dict(found)


CASES = [(module, name) for module in MODULES for name in seeds(module)]


def test_there_are_enough_seeds() -> None:
    assert len(CASES) >= 60


@functools.cache
def report_of(module: str) -> Report:
    return check(f"tests.check.faults.{module}")


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize(("module", "name"), CASES)
def test_seeded_fault_is_reported_at_its_line(module: str, name: str) -> None:
    faults = [fault for fault in report_of(module).faults if fault.subject.endswith(f":{name}")]
    assert {(fault.place.line, fault.rule) for fault in faults} == seeds(module)[name], faults
    assert {Path(fault.place.file).name for fault in faults} == {f"{module}.py"}
    assert all(fault.expected and fault.found for fault in faults)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_else_is_reported(module: str) -> None:
    report = report_of(module)
    assert {fault.subject.rpartition(":")[2] for fault in report.faults} == set(seeds(module))
    assert all(item.reason.startswith("rule device: ") for item in report.unchecked)


@pytest.mark.parametrize(("module", "name"), [(module, next(iter(seeds(module)))) for module in MODULES])
def test_one_function_alone_gives_the_same(module: str, name: str) -> None:
    found = check(f"tests.check.faults.{module}:{name}").faults
    assert found == tuple(fault for fault in report_of(module).faults if fault.subject.endswith(f":{name}"))
