"""What a person sees in the terminal: progress with reward and mismatch, the errors, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from demo_support.broken_batches import BrokenBatch
from demo_support.results import Results, Step

WIDTH = 110
"""Of the errors, where the terminal is wider."""


class Terminal:
    """Shows a run as it goes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def show_title(self, seed: int) -> None:
        self.console.print(f"[bold]A policy learns through validated batches[/bold] (seed {seed})")
        legend = "reward: right answers; mismatch: mean |sampler - trainer|, nats; over 10 steps"
        self.console.print(legend, style="dim")

    def watch(self, title: str, steps: int, phase: Iterator[Step]) -> list[Step]:
        """Run a phase to its end under a progress bar."""
        columns = (
            TextColumn("[bold]{task.description:<20}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
        )
        done: list[Step] = []
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=steps, now="")
            for step in phase:
                done.append(step)
                progress.update(task, advance=1, now=_now(done[-10:]))
        return done

    def show_broken(self, broken: list[BrokenBatch]) -> None:
        self.console.print()
        self.console.rule("[bold]Six broken batches, and what the contract says", align="left")
        for number, batch in enumerate(broken, start=1):
            title = f"[bold]{number}. {batch.mistake}"
            error = batch.wrapped_error(min(self.console.width, WIDTH) - 8)
            body = Text.assemble((batch.unchecked, "dim"), "\n\n", error)
            panel = Panel(body, title=title, title_align="left", border_style="red", padding=(1, 2), width=WIDTH)
            self.console.print(panel)

    def show_table(self, results: Results) -> None:
        self.console.print()
        self.console.print(results_table(results))


def _now(last: list[Step]) -> str:
    """The means of the last steps."""

    def mean(name: str) -> float:
        return sum(step[name] for step in last) / len(last)

    if "reward" not in last[0]:
        return f"loss {mean('loss'):.3f}"
    return f"reward {mean('reward'):5.1%}  mismatch {mean('abs_diff_mean'):.4f}"


def results_table(results: Results) -> Table:
    table = Table(title="From the first to the last step", title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("before", "after"):
        table.add_column(column, justify="right")
    for row in results.summary():
        table.add_row(*row)
    return table
