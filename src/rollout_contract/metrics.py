"""Metrics that can be merged over micro-batches and ranks.

A metric is a few detached sums (or an extreme) with a rule that turns them into one number, so the metrics of a step
are the same however it was split. Nothing here synchronises with the device until :meth:`Metrics.compute` is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rollout_contract.kernels.masking import fill_outside, zero_outside
from rollout_contract.kernels.precision import widened, widest

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Merge = Literal["sum", "max", "min"]


def _ratio(sums: list[float]) -> float:
    total, count = sums
    return total / count if count else 0.0


def _exp_ratio(sums: list[float]) -> float:
    return math.exp(min(_ratio(sums), 709.0))


def _std(sums: list[float]) -> float:
    total, squares, count = sums
    if not count:
        return 0.0
    mean = total / count
    return math.sqrt(max(squares / count - mean * mean, 0.0))


def _effective_fraction(sums: list[float]) -> float:
    total, squares, count = sums
    return total * total / (squares * count) if squares and count else 1.0


_FINISH: dict[str, tuple[Merge, Callable[[list[float]], float]]] = {
    "mean": ("sum", _ratio),
    "sum": ("sum", lambda sums: sums[0]),
    "max": ("max", lambda sums: sums[0]),
    "min": ("min", lambda sums: sums[0]),
    "exp_mean": ("sum", _exp_ratio),
    "std": ("sum", _std),
    "effective_fraction": ("sum", _effective_fraction),
}

Kind = Literal["mean", "sum", "max", "min", "exp_mean", "std", "effective_fraction"]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Partial sums of one metric.

    Attributes:
        kind: the rule that merges the partial sums and finishes them. ``mean``: total / count. ``exp_mean``:
            exp(total / count), a perplexity. ``std``: population standard deviation. ``effective_fraction``:
            (sum w)^2 / (n sum w^2), the effective sample size as a fraction. ``sum``, ``max``, ``min``: themselves.
        parts: [k] detached, the partial sums, in the order that the rule takes them.
    """

    kind: Kind
    parts: Tensor

    def __post_init__(self) -> None:
        # A metric that is kept over steps must not keep their graphs alive.
        object.__setattr__(self, "parts", self.parts.detach())

    def merge(self, other: Metric) -> Metric:
        if self.kind != other.kind:
            raise ValueError(f"cannot merge a {self.kind!r} metric with a {other.kind!r} metric")
        theirs = other.parts.to(self.parts)
        merge = _FINISH[self.kind][0]
        if merge == "sum":
            return Metric(self.kind, self.parts + theirs)
        return Metric(
            self.kind, torch.maximum(self.parts, theirs) if merge == "max" else torch.minimum(self.parts, theirs)
        )

    def compute(self) -> float:
        """The number, on the host."""
        return _FINISH[self.kind][1](self.parts.tolist())


def parts(*sums: Tensor) -> Tensor:
    """Partial sums in float64: in float32 a count of tokens stops growing at 2^24."""
    return torch.stack([widened(part) for part in sums])


def _sum(kept: Tensor) -> Tensor:
    return kept.sum(dtype=widest(kept.device))


def _moments(kind: Kind, values: Tensor, mask: Tensor) -> Metric:
    """In float64 before anything is squared: the squares of float32 ratios near 1 have no digits left for a spread."""
    kept = widened(zero_outside(values.detach(), mask))
    return Metric(kind, parts(kept.sum(), kept.square().sum(), mask.count_nonzero()))


def mean(values: Tensor, mask: Tensor) -> Metric:
    """Mean of ``values`` where ``mask`` is True; 0 for none."""
    return Metric("mean", parts(_sum(zero_outside(values.detach(), mask)), mask.count_nonzero()))


def fraction(hits: Tensor, mask: Tensor) -> Metric:
    """Share of the masked-in positions at which the bool tensor ``hits`` is True."""
    return Metric("mean", parts((hits & mask).count_nonzero(), mask.count_nonzero()))


def total(values: Tensor, mask: Tensor) -> Metric:
    """Sum of ``values`` where ``mask`` is True."""
    return Metric("sum", parts(_sum(zero_outside(values.detach(), mask))))


def maximum(values: Tensor, mask: Tensor) -> Metric:
    """Largest of ``values`` where ``mask`` is True; -inf for none."""
    return Metric("max", _extreme(values, mask, float("-inf"), torch.amax))


def minimum(values: Tensor, mask: Tensor) -> Metric:
    """Smallest of ``values`` where ``mask`` is True; inf for none."""
    return Metric("min", _extreme(values, mask, float("inf"), torch.amin))


def _extreme(values: Tensor, mask: Tensor, empty: float, reduce: Callable[..., Tensor]) -> Tensor:
    kept = fill_outside(values, mask, empty).flatten()
    found = reduce(kept) if kept.numel() else kept.new_full((), empty)
    return parts(found)


def exp_mean(values: Tensor, mask: Tensor) -> Metric:
    """exp of the mean: a perplexity, when ``values`` are negative log-probs."""
    return Metric("exp_mean", mean(values, mask).parts)


def std(values: Tensor, mask: Tensor) -> Metric:
    """Population standard deviation of ``values`` where ``mask`` is True."""
    return _moments("std", values, mask)


def effective_fraction(weights: Tensor, mask: Tensor) -> Metric:
    """Effective sample size of importance weights as a fraction of their number: (sum w)^2 / (n sum w^2)."""
    return _moments("effective_fraction", weights, mask)


class Metrics(Mapping[str, Metric]):
    """Named metrics of a loss, a correction, or a whole step."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: Mapping[str, Metric] | None = None) -> None:
        self._metrics = dict(metrics or {})

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self._metrics)})"

    def merge(self, other: Mapping[str, Metric]) -> Metrics:
        """Metrics over both: shared names are merged by their rule, the others are kept."""
        merged = dict(self._metrics)
        for name, metric in other.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
        return Metrics(merged)

    def prefixed(self, prefix: str) -> Metrics:
        """The same metrics under ``prefix/name``."""
        return Metrics({f"{prefix}/{name}": metric for name, metric in self.items()})

    def all_reduce(self, group: ProcessGroup | None = None) -> Metrics:
        """Metrics over all ranks of ``group``. Every rank must hold the same names in the same order.

        One collective for all sums, one for all maxima, one for all minima.
        """
        operations = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}
        operations["min"] = torch.distributed.ReduceOp.MIN
        reduced = dict(self._metrics)
        for rule, operation in operations.items():
            names = [name for name, metric in self.items() if _FINISH[metric.kind][0] == rule]
            if not names:
                continue
            joined = torch.cat([self[name].parts for name in names])
            torch.distributed.all_reduce(joined, operation, group)
            pieces = joined.split([self[name].parts.numel() for name in names])
            reduced |= {name: Metric(self[name].kind, part) for name, part in zip(names, pieces, strict=True)}
        return Metrics(reduced)

    def compute(self) -> dict[str, float]:
        """All numbers, on the host, with one device synchronisation."""
        if not self._metrics:
            return {}
        device = next(iter(self._metrics.values())).parts.device
        flat = torch.cat([metric.parts.to(device, torch.float64) for metric in self.values()]).tolist()
        numbers: dict[str, float] = {}
        for name, metric in self.items():
            size = metric.parts.numel()
            numbers[name], flat = _FINISH[metric.kind][1](flat[:size]), flat[size:]
        return numbers
