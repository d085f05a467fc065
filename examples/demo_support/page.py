"""The report as one HTML file that needs nothing else: pictures and styles are inside."""

from __future__ import annotations

import base64
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from demo_support.charts import svg
from demo_support.panels import Panel, distillation_panels, grpo_panels
from demo_support.results import Results

TEMPLATE = "page.html"


def write_page(path: Path, results: Results) -> None:
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["picture"] = picture
    environment.filters["percent"] = lambda share: f"{share:.1%}"
    page = environment.get_template(TEMPLATE).render(
        results=results,
        config=asdict(results.config),
        grpo_panels=grpo_panels(results),
        distillation_panels=distillation_panels(results),
    )
    path.write_text(page, encoding="utf-8")


def picture(panel: Panel) -> str:
    """A panel as a data address. As a picture of its own, its ids cannot clash with those of the others."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(panel).encode()).decode()
