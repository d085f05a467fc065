"""The types are a product: what must pass passes, and what must be refused is refused, under three checkers.

The files in ``tests/typing`` are never executed. A line marked ``# E`` must have an error under every checker (under
those named in ``# E[mypy, pyright]``, where one of them cannot see it), and no other line may have one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.uninstrumented("runs other programs")

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests/typing").glob("*.py"))
MARK = re.compile(r"# E(?:\[([\w, ]+)\])?(?::|$)")

# Rules about style: an error of theirs says nothing about the contract, so it never counts for a mark.
STYLE = re.compile(r"unused|unknown-?(arg|attr|lambda|member|param|return|var)|unnecessary|private|implicit-any", re.I)

Line = tuple[str, int]
Found = tuple[str, int, str, str]
"""The file, line, rule and message of an error."""


def run(*command: str | Path) -> str:
    """Standard output of a checker, which exits with 1 when it finds errors."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def mypy() -> Iterator[Found]:
    options = ("--config-file=", "--strict", "--output=json", "--cache-dir=.mypy_cache/typing")
    for line in run(sys.executable, "-m", "mypy", *options, *FILES).splitlines():
        error = json.loads(line)
        if error["severity"] == "error":
            yield error["file"], error["line"], error["code"], error["message"]


def pyright() -> Iterator[Found]:
    report = run(sys.executable, "-m", "pyright", "--outputjson", "-p", "tests/typing/pyrightconfig.json")
    for error in json.loads(report)["generalDiagnostics"]:
        if error["severity"] == "error":
            yield error["file"], error["range"]["start"]["line"] + 1, error["rule"], error["message"]


def pyrefly() -> Iterator[Found]:
    options = ("--config=tests/typing/pyrefly.toml", f"--python-interpreter-path={sys.executable}")
    report = run(ROOT / ".venv-pyrefly/bin/pyrefly", "check", *options, "--output-format=json", "--summary=none")
    for error in json.loads(report)["errors"]:
        if error["severity"] == "error":
            yield error["path"], error["line"], error["name"], error["description"]


CHECKERS: dict[str, Callable[[], Iterator[Found]]] = {"mypy": mypy, "pyright": pyright, "pyrefly": pyrefly}


def marks() -> dict[Line, set[str]]:
    """Each marked line, and the checkers that must refuse it."""
    found: dict[Line, set[str]] = {}
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if mark := MARK.search(line):
                found[path.name, number] = set(mark[1].split(", ")) if mark[1] else set(CHECKERS)
    return found


def differences(found: list[Found], expected: set[Line]) -> list[str]:
    """Marked lines without an error about the contract, and errors in lines that are not marked."""
    refused = {(Path(path).name, line) for path, line, rule, _ in found if not STYLE.search(rule)}
    wrong = [f"{file}:{line}: marked, but accepted" for file, line in sorted(expected - refused)]
    for path, line, rule, message in found:
        if (Path(path).name, line) not in expected:
            wrong.append(f"{Path(path).name}:{line}: not marked, but refused: {message} ({rule})")
    return wrong


@pytest.mark.parametrize("checker", CHECKERS)
def test_exactly_the_marked_lines_are_refused(checker: str) -> None:
    expected = {line for line, checkers in marks().items() if checker in checkers}
    wrong = differences(list(CHECKERS[checker]()), expected)
    assert not wrong, f"{checker}:\n" + "\n".join(wrong)


def test_a_missing_error_is_a_difference_and_so_is_another_one() -> None:
    found = [("a.py", 1, "arg-type", "no"), ("a.py", 3, "arg-type", "no"), ("a.py", 4, "reportUnusedImport", "no")]
    assert differences(found, {("a.py", 1), ("a.py", 2), ("a.py", 4)}) == [
        "a.py:2: marked, but accepted",
        "a.py:4: marked, but accepted",
        "a.py:3: not marked, but refused: no (arg-type)",
    ]


def test_every_mark_names_checkers_that_exist() -> None:
    assert all(checkers <= set(CHECKERS) for checkers in marks().values())


def test_the_examples_of_the_documentation_are_among_them() -> None:
    checked = (ROOT / "tests/typing/docs.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/typing.md").read_text(), re.DOTALL)
    assert blocks
    assert all(block in checked for block in blocks)
