"""The demo goes through, writes its reports and shows all six errors; and its parts do what it says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

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


# -- the parts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def rollouts(seed: int) -> tuple[Any, Any]:
    """A small untrained policy and what its sampler wrote."""
    from demo_support.policy import Policy
    from demo_support.sampler import Sampler
    from demo_support.task import VOCABULARY, encode

    torch.manual_seed(seed)
    policy = Policy(len(VOCABULARY), 16, width=16, layers=1)
    prompts = [encode(text) for text in ("31=", "2=", "40512=", "31=")]
    return policy, Sampler(policy, max_response_length=8, seed=seed).sample(prompts)


@pytest.mark.usefixtures("parts")
def test_scores_do_not_depend_on_the_padding() -> None:
    from demo_support.policy import score_fixed
    from demo_support.trainer import sampled_batch

    policy, rollout = rollouts(0)
    batch = sampled_batch(rollout)
    alone = torch.cat([score_fixed(policy, sample) for sample in batch])
    torch.testing.assert_close(score_fixed(policy, batch), alone)


@pytest.mark.usefixtures("parts")
def test_a_fresh_sampler_differs_from_the_trainer_by_rounding_alone() -> None:
    from demo_support.policy import score_fixed
    from demo_support.trainer import sampled_batch

    policy, rollout = rollouts(1)
    sampled = torch.tensor([number for row in rollout.log_probs for number in row])
    difference = (sampled - score_fixed(policy, sampled_batch(rollout))).abs().max()
    assert 0 < difference < 0.05


@pytest.mark.usefixtures("parts")
def test_responses_that_were_cut_off_are_masked_out() -> None:
    from demo_support.sampler import Rollout
    from demo_support.task import encode

    rollout = Rollout([encode("31=")] * 2, [encode("13."), encode("1333")], [[-0.1] * 3, [-0.1] * 4])
    assert rollout.loss_mask == [[True] * 3, [False] * 4]
    assert rollout.rewards == [1.0, 0.0]


@pytest.mark.usefixtures("parts")
def test_sloppy_answers_swap_two_neighbours_and_held_out_prompts_are_never_trained_on() -> None:
    from demo_support.task import SortTask, answer, decode, encode

    task = SortTask(1, 2, held_out=40, seed=0)
    assert decode(task.sloppy_answer(encode("21="), 1.0)) == "21."
    assert decode(task.sloppy_answer(encode("33="), 1.0)) == decode(answer(encode("33="))) == "33."
    held_out = {decode(prompt) for prompt in task.held_out}
    assert held_out.isdisjoint(decode(prompt) for prompt in task.prompts(200))


@pytest.mark.usefixtures("parts")
def test_the_same_seed_gives_the_same_run() -> None:
    from demo_support.config import DemoConfig
    from demo_support.run import Run

    config = replace(DemoConfig().shortened(1), evaluation_prompts=8, samples_per_step=16)
    first, second = (Run(config, lambda title, steps, phase: list(phase)).results() for _ in range(2))
    assert first == second
