"""Two processes with gradients averaged over them, and metrics over both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_two_ranks() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    module = ["-m", "tests.integrations.trl.two_ranks"]
    quiet = os.environ | {"ACCELERATE_USE_CPU": "1", "PYTHONWARNINGS": "ignore"}
    root = Path(__file__).parents[3]
    run = subprocess.run([*launch, *module], capture_output=True, text=True, timeout=300, env=quiet, cwd=root)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["ranks"] == 2
    assert found["apart"] < 1e-4
    assert found["wrong"] == []
    assert "contract/approx_kl" in found["own"]
