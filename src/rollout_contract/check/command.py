"""The commands ``check`` and ``rules``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollout_contract.check.config import Config, ConfigError, Format, explain, find_config, read_config
from rollout_contract.check.findings import Report
from rollout_contract.check.report import FORMATS
from rollout_contract.check.report.text import text_lines
from rollout_contract.check.rules import SUMMARIES
from rollout_contract.check.run import check as run_check

_STYLES = {
    "file": "bold",
    "line": "dim",
    "rule": "bold red",
    "subject": "cyan",
    "code": "magenta",
    "label": "dim",
    "bad": "bold red",
    "unsure": "bold yellow",
    "good": "bold green",
}
_WIDEST = 110

app: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """A typed data contract between the rollouts and the loss."""


@app.command()
def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="Modules, packages, or module:name. Default: those of pyproject.toml.", metavar="TARGET"),
    ] = None,
    format: Annotated[Format | None, typer.Option(help="How the report is written to stdout.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first fault.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Look at these rules alone.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Leave these rules out.")] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out functions and schemas, such as 'mytrainer.losses:*_legacy'."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead of the nearest pyproject.toml.", dir_okay=False)
    ] = None,
) -> None:
    """Check schemas and functions on tiny synthetic batches: shapes, gradient flow, masks, splits, devices.

    Exit code 0: clean. 1: faults. 2: something could not be checked, or the command line is wrong.
    """
    given: dict[str, Any] = {"targets": targets, "format": format, "fail_fast": fail_fast}
    given |= {"only": _names(only), "ignore": _names(ignore), "exclude": _names(exclude)}
    chosen = {name: value for name, value in given.items() if value}
    settings = _configuration(config, chosen)
    if not settings.targets:
        raise typer.BadParameter("name a module, or set targets in [tool.rollout_contract] of pyproject.toml")
    _show_report(_run(settings), settings.format)


@app.command()
def rules() -> None:
    """List the rules."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, summary in SUMMARIES.items():
        table.add_row(name, summary)
    Console(highlight=False).print(table)


def _names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Repeated options, each with one name or several between commas."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def _configuration(file: Path | None, chosen: dict[str, Any]) -> Config:
    """What pyproject.toml says, overridden by the command line."""
    try:
        found = find_config(Path.cwd()) if file is None else read_config(file)
        return Config.model_validate(found.model_dump() | chosen)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    except ValidationError as error:
        raise typer.BadParameter(explain(error)) from error


def _run(settings: Config) -> Report:
    """Import as ``python -m`` does: what lies in the working directory is found first."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with _progress(settings.format) as show:
        return run_check(
            *settings.targets,
            only=settings.only,
            ignore=settings.ignore,
            exclude=settings.exclude,
            fail_fast=settings.fail_fast,
            progress=show,
        )


@contextlib.contextmanager
def _progress(format: Format) -> Generator[Callable[[str], None]]:
    console = Console(stderr=True, highlight=False)
    if format != "text" or not console.is_terminal:
        yield lambda name: None
        return
    with console.status("importing") as status:
        yield lambda name: status.update(f"checking {name}")


def _show_report(report: Report, format: Format) -> None:
    console = Console(highlight=False)
    if format != "text" or not console.is_terminal:
        sys.stdout.write(FORMATS[format](report))
    else:
        for line in text_lines(report, min(console.width, _WIDEST)):
            console.print(Text.assemble(*((span.text, _STYLES.get(span.style, "")) for span in line)), soft_wrap=True)
    raise typer.Exit(report.exit_code)
