"""Run by test_ranks.py under torchrun: both trainers, on this rank's own rollouts; rank 0 prints how they differ."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from rollout_contract.integrations.trl import ContractGRPOTrainer
from tests.integrations.trl.world import Script, make_config, make_trainer

RHYTHM = {"max_steps": 4, "logging_steps": 2, "num_iterations": 2, "gradient_accumulation_steps": 2}


def run(kind: type[GRPOTrainer], path: Path, rank: int) -> Any:
    script = Script(tools=True)
    script.generator.manual_seed(rank)
    trainer = make_trainer(kind, make_config(path, **RHYTHM), script)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return trainer


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    theirs, ours = (run(kind, Path(tempfile.mkdtemp()), rank) for kind in (GRPOTrainer, ContractGRPOTrainer))
    pairs = zip(theirs.model.parameters(), ours.model.parameters(), strict=True)
    apart = max(float((mine - his).detach().abs().max()) for his, mine in pairs)
    wrong = [
        name
        for his, mine in zip(theirs.state.log_history[:-1], ours.state.log_history[:-1], strict=True)
        for name, value in his.items()
        if name != "step_time" and not math.isclose(mine[name], value, rel_tol=1e-3, abs_tol=1e-4)
    ]
    own = [name for name in ours.state.log_history[0] if name.startswith("contract/")]
    if rank == 0:
        print(json.dumps({"ranks": ours.accelerator.num_processes, "apart": apart, "wrong": wrong, "own": own}))


if __name__ == "__main__":
    main()
