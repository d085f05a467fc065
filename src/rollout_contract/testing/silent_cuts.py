"""Finding the producers whose live graphs a build cuts silently.

Cutting is right, and silent by default: nobody wants a warning for each step of a run. In a test it is worth knowing
who sent a live tensor, because the graph behind it was computed and kept in memory for nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rollout_contract.configuration import Settings
from rollout_contract.errors import Violation
from rollout_contract.schema import graph
from rollout_contract.schema.plan import FieldSpec

_STANDARD_LIBRARY = str(Path(traceback.__file__).parent)
_LIBRARY = str(Path(graph.__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class SilentCut:
    """A live graph that was cut from a fixed field, without an error and without a warning.

    Attributes:
        field: its name.
        graph: where the graph came from.
        stack: the lines, ``file:line``, that led there, the one that built the batch first. Installed packages are left
            out.
    """

    field: str
    graph: str
    stack: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.field}: a live graph was cut silently", f"  found     {self.graph}"]
        lines += [f"  {'from' if number else 'built at':<9} {place}" for number, place in enumerate(self.stack[:4])]
        lines.append("  repair    score under torch.no_grad(), or detach where the scores are made")
        return "\n".join(lines)


@contextmanager
def watch_cuts() -> Generator[list[SilentCut]]:
    """Collect every silent cut inside the block, in all threads.

    >>> with watch_cuts() as cuts:
    ...     step = MyStep(..., old_log_probs=live)
    >>> cuts[0].field
    'old_log_probs'
    """
    cuts: list[SilentCut] = []
    original = graph._report_live

    def report(spec: FieldSpec, tensor: Tensor, settings: Settings) -> Violation | None:
        if settings.live_inputs == "cut":
            cuts.append(SilentCut(spec.name, graph.describe_graph(tensor), tuple(_stack())))
        return original(spec, tensor, settings)

    graph._report_live = report
    try:
        yield cuts
    finally:
        graph._report_live = original


def _stack() -> Iterator[str]:
    """From the innermost frame outwards, without this library and what is installed."""
    for frame in reversed(traceback.extract_stack()):
        is_foreign = frame.filename.startswith((_LIBRARY, _STANDARD_LIBRARY)) or "site-packages" in frame.filename
        if not is_foreign:
            yield f"{frame.filename}:{frame.lineno}"
