"""The panels drawn with matplotlib: all of them in one PNG, each alone as an SVG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from demo_support.panels import Panel

matplotlib.use("Agg")

INK = "#1b2333"
MUTED = "#626c80"
GRID = "#e4e8f0"


COLUMNS = 3


def write_png(path: Path, title: str, subtitle: str, panels: Sequence[Panel]) -> None:
    """All panels, three in a row, each with its explanation."""
    rows = -(-len(panels) // COLUMNS)
    height = 1.1 + 4.1 * rows
    figure = Figure(figsize=(16, height), dpi=110, facecolor="white")
    grid = figure.add_gridspec(
        rows, COLUMNS, left=0.055, right=0.945, top=1 - 2.1 / height, bottom=0.6 / height, hspace=0.66, wspace=0.42
    )
    figure.text(0.02, 1 - 0.5 / height, title, fontsize=21, fontweight="bold", color=INK)
    figure.text(0.02, 1 - 0.88 / height, subtitle, fontsize=13, color=MUTED)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(grid[index // COLUMNS, index % COLUMNS])
        axes.text(0, 1.265, panel.title, transform=axes.transAxes, fontsize=14, fontweight="bold", color=INK)
        explanation = textwrap.fill(panel.explanation, 62)
        axes.text(0, 1.22, explanation, transform=axes.transAxes, fontsize=9.5, color=MUTED, va="top", linespacing=1.35)
        draw(axes, panel)
    figure.savefig(path)


def svg(panel: Panel) -> str:
    """One panel as a picture for the page, which sets title and explanation itself."""
    figure = Figure(figsize=(4.3, 2.9), facecolor="white", layout="constrained")
    draw(figure.add_subplot(), panel)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def draw(axes: Axes, panel: Panel) -> None:
    """The steps themselves in pale, their moving average in front, and its last value beside it."""
    steps = range(1, len(panel.values) + 1)
    axes.plot(steps, panel.values, color=panel.color, alpha=0.28, linewidth=1.1)
    axes.plot(steps, panel.smooth, color=panel.color, linewidth=2.4, solid_capstyle="round")
    end = (float(steps[-1]), panel.smooth[-1])
    axes.plot(*end, "o", color=panel.color, markersize=6, clip_on=False, zorder=3)
    _label(axes, panel.last, end, (8, 0), ha="left", va="center", fontsize=11, fontweight="bold", color=panel.color)
    for level in panel.levels:
        axes.axhline(level.value, color=MUTED, linewidth=1.2, linestyle=(0, (5, 4)))
        text, right = f"{level.label} {panel.show(level.value)}", (float(steps[-1]), level.value)
        _label(axes, text, right, (-4, 4), ha="right", va="bottom", fontsize=9.5, color=MUTED)
    _dress(axes, panel)


def _label(axes: Axes, text: str, point: tuple[float, float], offset: tuple[int, int], **style: Any) -> None:
    """Text beside a point, also where that lies outside the axes."""
    axes.annotate(text, point, offset, textcoords="offset points", annotation_clip=False, **style)


def _dress(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel("step", fontsize=10, color=MUTED)
    axes.set_ylabel(panel.unit, fontsize=10, color=MUTED)
    axes.set_xlim(1, max(len(panel.values), 2))
    axes.set_ylim(*panel.bounds)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if panel.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
    axes.grid(axis="y", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0, labelsize=9.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#b6bfce")
