"""A policy learns through validated batches: warm start, GRPO, distillation, and six batches that the contract refuses.

    python examples/demo.py                 # about a minute and a half
    python examples/demo.py --quick         # a few steps of everything

Writes demo_output/report.html, demo_output/report.png and demo_output/metrics.json. docs/demo.md is a tour.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console

from demo_support.charts import write_png
from demo_support.config import DemoConfig
from demo_support.page import write_page
from demo_support.panels import distillation_panels, grpo_panels
from demo_support.results import Results
from demo_support.run import Run
from demo_support.watch import Terminal

QUICK_STEPS = 3


def main() -> None:
    arguments = parse_arguments()
    config = replace(DemoConfig(), seed=arguments.seed)
    steps = QUICK_STEPS if arguments.quick else arguments.steps
    config = config if steps is None else config.shortened(steps)
    torch.set_num_threads(arguments.threads)

    console = Console(highlight=False)
    terminal = Terminal(console)
    terminal.show_title(config.seed)
    start = time.perf_counter()
    results = Run(config, terminal.watch).results()
    results.seconds = time.perf_counter() - start
    terminal.show_broken(results.broken)
    terminal.show_table(results)
    for path in write_reports(arguments.output, results):
        console.print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=DemoConfig.seed, help="of weights, prompts and samples")
    parser.add_argument("--steps", type=int, help="at most so many steps in each phase")
    parser.add_argument("--quick", action="store_true", help=f"the same as --steps {QUICK_STEPS}")
    parser.add_argument("--threads", type=int, default=1, help="of torch; two are faster on two cores that idle")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the reports")
    return parser.parse_args()


def write_reports(folder: Path, results: Results) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    png, page, numbers = (folder / name for name in ("report.png", "report.html", "metrics.json"))
    rewards = f"policy {results.policy_before:.1%} → {results.policy_after:.1%}"
    rewards += f", student {results.student_before:.1%} → {results.student_after:.1%} right answers on held-out prompts"
    panels = [*grpo_panels(results), *distillation_panels(results)]
    write_png(png, "A policy learns through validated batches", rewards, panels)
    write_page(page, results)
    numbers.write_text(json.dumps(asdict(results), indent=1), encoding="utf-8")
    return [page, png, numbers]


if __name__ == "__main__":
    main()
