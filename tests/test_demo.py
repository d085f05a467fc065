"""The demo goes through, writes its reports and shows all six errors; and its parts do what it says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ERRORS = ["LiveGraphError", "DeviceError", "ShapeError", "LengthError", "NonFiniteError", "MutatedError"]


class Addresses(HTMLParser):
    """Collects every address that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a shortened run prints, and the folder that it writes to."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--steps", "2", "--threads", "1", "--output", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def test_every_phase_runs_to_its_end(run: tuple[str, Path]) -> None:
    printed, _ = run
    for phase in ("Warm start", "GRPO", "Student's warm start", "Distillation"):
        assert any(line.startswith(phase) and "2/2" in line for line in printed.splitlines()), phase


def test_all_six_errors_are_printed(run: tuple[str, Path]) -> None:
    printed, _ = run
    assert [line.split(":")[0].strip("│ ") for line in printed.splitlines() if "breaks its contract" in line] == ERRORS


def test_the_errors_name_field_and_repair(run: tuple[str, Path]) -> None:
    _, folder = run
    broken = json.loads((folder / "metrics.json").read_text())["broken"]
    fields = ["old_log_probs", "teacher_log_probs", "advantages", "loss_mask", "rollout_log_probs", "advantages"]
    assert [field in batch["error"] for field, batch in zip(fields, broken, strict=True)] == [True] * 6
    assert all("repair" in batch["error"] for batch in broken)


def test_the_table_states_rewards_before_and_after(run: tuple[str, Path]) -> None:
    printed, _ = run
    rows = [line for line in printed.splitlines() if "Reward of the" in line]
    assert len(rows) == 2
    assert all(line.count("%") == 2 for line in rows)


def test_the_picture_is_a_png(run: tuple[str, Path]) -> None:
    _, folder = run
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_loads_nothing_from_elsewhere(run: tuple[str, Path]) -> None:
    _, folder = run
    addresses = Addresses()
    addresses.feed((folder / "report.html").read_text(encoding="utf-8"))
    assert len(addresses.found) == 9
    assert all(address.startswith("data:image/svg+xml;base64,") for address in addresses.found)


def test_metrics_have_one_entry_per_step(run: tuple[str, Path]) -> None:
    _, folder = run
    metrics = json.loads((folder / "metrics.json").read_text())
    assert len(metrics["grpo"]) == len(metrics["distillation"]) == 2
    assert {"reward", "kl", "ess", "abs_diff_mean", "clip_fraction"} <= set(metrics["grpo"][0])
    assert {"reward", "reverse_kl", "ess"} <= set(metrics["distillation"][0])
