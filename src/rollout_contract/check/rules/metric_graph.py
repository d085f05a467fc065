"""Metrics carry no graph."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.probe import Finding, Probe


def find(probe: Probe) -> Iterator[Finding]:
    if not probe.runs:
        return
    for name, tensor in probe.first.metrics.items():
        if tensor.requires_grad:
            place = probe.at(probe.subject.source.naming(name))
            hint = "detach it: whoever keeps the metrics keeps the graph of the whole step in memory"
            yield Finding(place, f"the metric {name} without a graph", "a live graph", hint)
