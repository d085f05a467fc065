"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollout_contract import cli
from rollout_contract.check.command import app
from rollout_contract.check.rules import RULE_NAMES

HEAD = """
import torch
from rollout_contract import KLBatch, Loss
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
"""
CLEAN = """
def squared(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs")
    return weighted_sum(batch, (log_probs - read(batch, "ref_log_probs", like=log_probs)).square())
"""
DETACHED = """
def detached(batch: KLBatch) -> Loss:
    log_probs = read(batch, "log_probs").detach()
    return weighted_sum(batch, (log_probs - read(batch, "ref_log_probs", like=log_probs)).square())
"""
PROMOTED = """
def promoted(batch: KLBatch) -> Loss:
    return weighted_sum(batch, read(batch, "log_probs") - read(batch, "ref_log_probs"))
"""
UNKNOWN = """
def with_model(batch: KLBatch, model: torch.nn.Linear) -> Loss:
    return squared(batch)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A working directory with modules whose names no other test uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def write(folder: Path, name: str, *parts: str) -> str:
    (folder / f"{name}.py").write_text(HEAD + "".join(parts))
    return name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_clean(folder: Path) -> None:
    result = run("check", write(folder, "trainer_clean", CLEAN))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("no faults in 1 function or schema")


def test_faults_are_shown_with_their_line(folder: Path) -> None:
    result = run("check", write(folder, "trainer_faults", CLEAN, DETACHED))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "trainer_faults.py"
    assert lines[1] == '    12  log_probs = read(batch, "log_probs").detach()'
    assert lines[2] == "        unreached  in detached"
    assert lines[-1].startswith("1 fault in 1 of 2 functions and schemas")


def test_what_cannot_be_checked_gives_two(folder: Path) -> None:
    result = run("check", write(folder, "trainer_unknown", CLEAN, UNKNOWN))
    assert result.exit_code == 2
    assert "no value for parameter model: Linear" in result.stdout


def test_a_failed_import_gives_two_and_the_reason(folder: Path) -> None:
    (folder / "trainer_broken_import.py").write_text("import no_such_module_anywhere\n")
    result = run("check", "trainer_broken_import")
    assert result.exit_code == 2
    assert "import failed: ModuleNotFoundError: No module named 'no_such_module_anywhere'" in result.stdout
    assert "trainer_broken_import.py:1" in result.stdout
    assert run("check", "trainer_that_is_not_there").exit_code == 2


def test_one_target_of_a_module(folder: Path) -> None:
    name = write(folder, "trainer_targets", CLEAN, DETACHED)
    assert run("check", f"{name}:squared").exit_code == 0
    assert run("check", f"{name}:detached").exit_code == 1
    assert run("check", f"{name}:missing").exit_code == 2
    assert run("check", f"{name}.py").exit_code == 2


def test_only_and_ignore(folder: Path) -> None:
    name = write(folder, "trainer_rules", DETACHED, PROMOTED)
    assert {fault["rule"] for fault in found(name)} == {"unreached", "dtype"}
    assert {fault["rule"] for fault in found(name, "--only", "dtype")} == {"dtype"}
    assert {fault["rule"] for fault in found(name, "--ignore", "dtype")} == {"unreached"}
    assert found(name, "--ignore", "dtype,unreached") == []
    assert found(name, "--only", "split", "--only", "masked") == []


def found(*arguments: str) -> list[dict[str, object]]:
    faults: list[dict[str, object]] = json.loads(run("check", "--format", "json", *arguments).stdout)["faults"]
    return faults


def test_an_unknown_rule_is_a_usage_error(folder: Path) -> None:
    result = run("check", "--only", "spilt", "anything")
    assert result.exit_code == 2
    assert "did you mean split?" in " ".join(result.output.replace("│", " ").split())


def test_fail_fast_stops_at_the_first_fault(folder: Path) -> None:
    result = run("check", "--fail-fast", "--format", "json", write(folder, "trainer_fast", DETACHED, PROMOTED))
    content = json.loads(result.stdout)
    assert len(content["faults"]) == 1
    assert content["checked"] == ["trainer_fast:detached"]


def test_configuration_in_pyproject(folder: Path) -> None:
    name = write(folder, "trainer_configured", CLEAN, DETACHED, PROMOTED, UNKNOWN)
    (folder / "pyproject.toml").write_text(
        f'[tool.rollout_contract]\ntargets = ["{name}"]\nignore = ["dtype"]\n'
        'exclude = ["*:with_*"]\nformat = "github"\n'
    )
    result = run("check")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"::error file={name}.py,line=12,title=rollout-contract unreached::")
    assert run("check", "--ignore", "dtype,unreached").exit_code == 0


def test_configuration_in_a_file_of_its_own(folder: Path) -> None:
    write(folder, "trainer_in_file", DETACHED)
    file = folder / "contract.toml"
    file.write_text('[tool.rollout_contract]\ntargets = ["trainer_in_file"]\nonly = ["split"]\n')
    assert run("check", "--config", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.rollout_contract]\ntarget = ["a"]', "target: Extra inputs are not permitted"),
        ('[tool.rollout_contract]\nignore = ["masks"]', "there is no rule 'masks'; did you mean masked?"),
        ('[tool.rollout_contract]\nformat = "xml"', "format: Input should be 'text', 'json', 'sarif' or 'github'"),
        ("[tool.rollout_contract", "pyproject.toml: "),
    ],
)
def test_a_wrong_configuration_is_a_usage_error(folder: Path, text: str, message: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    result = run("check", "anything")
    assert result.exit_code == 2
    assert "".join(message.split()) in "".join(result.output.replace("│", "").split())


def test_without_targets_it_asks_for_one(folder: Path) -> None:
    result = run("check")
    assert result.exit_code == 2
    assert "name a module" in result.output


def test_what_the_module_prints_does_not_spoil_the_report(folder: Path) -> None:
    name = write(
        folder, "trainer_prints", "print('hello')\n", CLEAN.replace("    log_probs", "    print(1)\n    log_probs", 1)
    )
    assert json.loads(run("check", "--format", "json", name).stdout)["exit_code"] == 0


def test_rules_are_listed() -> None:
    result = run("rules")
    assert result.exit_code == 0
    assert [name for name in RULE_NAMES if name not in result.stdout] == []


def test_the_console_script(folder: Path) -> None:
    name = write(folder, "trainer_script", DETACHED)
    code = "from rollout_contract.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "check", name, "--only", "unreached"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "unreached  in detached" in result.stdout
    assert result.stderr == ""


def test_without_typer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "rollout_contract.check.command")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "the command line needs typer: pip install 'rollout-contract[cli]'\n"
