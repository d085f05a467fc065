"""The example and the benchmark run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from rollout_contract.integrations.trl import trainer

ROOT = Path(__file__).parents[3]


def test_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trl_grpo.py", "--steps", "2"])
    runpy.run_path(str(ROOT / "examples" / "trl_grpo.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "contract/approx_kl" in printed
    assert "old_log_probs [live graph]" in printed
    assert "key old_per_token_logps of TRL" in printed


def test_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bound_step", "losses", "trl_metrics", "own_metrics"):
        monkeypatch.setattr(trainer, name, getattr(trainer, name))  # the benchmark replaces them; this puts them back
    sizes = "--hidden 16 --layers 1 --vocabulary 32 --rows 2 --length 4 --steps 4"
    monkeypatch.setattr(sys, "argv", ["trl_overhead.py", *sizes.split()])
    runpy.run_path(str(ROOT / "benchmarks" / "trl_overhead.py"), run_name="__main__")
    assert "pack, build, weigh, bind" in capsys.readouterr().out
