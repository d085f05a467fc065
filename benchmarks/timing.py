"""Interleaved timing of a subject and its peer in one process: the machine's noise hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """How long the subject and its peer took, in seconds per call, and what that says."""

    name: str
    subject: float
    peer: float
    peer_name: str

    @property
    def ratio(self) -> float:
        """Below 1: the subject is faster."""
        return self.subject / self.peer

    def __str__(self) -> str:
        verdict = f"{1 / self.ratio:5.2f}x faster" if self.ratio < 1 else f"{self.ratio:5.2f}x slower"
        return f"{self.name:<52} {_show(self.subject)}  {_show(self.peer)}  {verdict} than {self.peer_name}"


def _show(seconds: float) -> str:
    return f"{seconds * 1e6:9.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:9.2f} ms"


def compare(
    name: str, subject: Callable[[], object], peer: Callable[[], object], peer_name: str, rounds: int = 15
) -> Comparison:
    """Medians of interleaved rounds, each long enough to be measured."""
    calls = _calls_for(subject), _calls_for(peer)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, number, found in zip((subject, peer), calls, times, strict=True):
            found.append(_time(run, number))
    return Comparison(name, statistics.median(times[0]), statistics.median(times[1]), peer_name)


def _calls_for(run: Callable[[], object], seconds: float = 0.02) -> int:
    run()
    return max(1, int(seconds / max(_time(run, 1), 1e-7)))


def _time(run: Callable[[], object], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number
