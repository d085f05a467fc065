"""The four formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_contract.check import Fault, Place, Report, Unchecked
from rollout_contract.check.report import FORMATS
from rollout_contract.check.report.text import text_lines
from rollout_contract.check.rules import RULE_NAMES


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "trainer" / "losses.py"
    source.parent.mkdir()
    source.write_text("import torch\n\n\ndef kl(batch):\n    return batch.log_probs.sum()\n")
    here = Place(str(source), 5)
    return Report(
        (
            Fault("masked", "trainer.losses:kl", here, "the same result", "nan: 100%", "read(batch, name)"),
            Fault("split", "trainer.losses:kl", here, "the same loss", "another one"),
        ),
        (Unchecked("trainer.model", Place("", 0), "import failed: ModuleNotFoundError: no module named 'flash'"),),
        ("trainer.losses:kl", "trainer.losses:Step"),
        1.26,
    )


def test_text(report: Report) -> None:
    assert FORMATS["text"](report) == (
        "trainer/losses.py\n"
        "     5  return batch.log_probs.sum()\n"
        "        masked  in kl\n"
        "        expected  the same result\n"
        "        found     nan: 100%\n"
        "        repair    read(batch, name)\n"
        "\n"
        "        split  in kl\n"
        "        expected  the same loss\n"
        "        found     another one\n"
        "\n"
        "not checked\n"
        "  trainer.model\n"
        "        import failed: ModuleNotFoundError: no module named 'flash'\n"
        "\n"
        "2 faults in 1 of 2 functions and schemas, 1 thing not checked, 1.3 s\n"
    )


def test_text_of_a_clean_report() -> None:
    assert FORMATS["text"](Report((), (), ("a:b",), 0.04)) == "no faults in 1 function or schema, 0.0 s\n"


def test_text_fits_a_narrow_terminal(report: Report) -> None:
    fault = Fault("masked", "trainer.losses:kl", report.faults[0].place, "word " * 40, "x", "")
    lines = ["".join(span.text for span in line) for line in text_lines(Report((fault,), (), (), 0.0), 60)]
    assert max(map(len, lines)) <= 60


def test_json(report: Report) -> None:
    content = json.loads(FORMATS["json"](report))
    assert content["exit_code"] == 1
    assert content["faults"][0] == {
        "file": "trainer/losses.py",
        "line": 5,
        "rule": "masked",
        "subject": "trainer.losses:kl",
        "expected": "the same result",
        "found": "nan: 100%",
        "hint": "read(batch, name)",
    }
    assert content["unchecked"][0]["subject"] == "trainer.model"
    assert content["checked"] == ["trainer.losses:kl", "trainer.losses:Step"]


def test_sarif(report: Report) -> None:
    content = json.loads(FORMATS["sarif"](report))
    assert content["version"] == "2.1.0"
    (run,) = content["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULE_NAMES)
    result = run["results"][0]
    assert result["ruleId"] == "masked"
    assert result["level"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "trainer/losses.py"}, "region": {"startLine": 5}}
    assert run["invocations"][0]["executionSuccessful"] is False
    note = run["invocations"][0]["toolExecutionNotifications"][0]
    assert "import failed" in note["message"]["text"]


def test_sarif_of_a_file_elsewhere(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    place = json.loads(FORMATS["sarif"](report))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].startswith("file:///")


def test_github(report: Report) -> None:
    lines = FORMATS["github"](report).splitlines()
    assert lines[0] == (
        "::error file=trainer/losses.py,line=5,title=rollout-contract masked::trainer.losses:kl%0A"
        "expected: the same result%0Afound: nan: 100%25%0Arepair: read(batch, name)"
    )
    assert lines[2].startswith("::warning title=rollout-contract not checked::trainer.model was not checked")


@pytest.mark.parametrize(("faults", "unchecked", "code"), [(0, 0, 0), (1, 0, 1), (1, 1, 1), (0, 1, 2)])
def test_exit_code(report: Report, faults: int, unchecked: int, code: int) -> None:
    assert Report(report.faults[:faults], report.unchecked[:unchecked], (), 0.0).exit_code == code
