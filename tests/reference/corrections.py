"""Importance weights and rejection masks between the behaviour policy b and the proximal policy o.

x = o - b in nats, rho = exp(x). Weights are plain numbers: nothing here has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.reference.scalars import Mask

Floats = Sequence[Sequence[float]]
Weights = list[list[float]]
Kept = list[list[bool]]


def log_ratios(old: Floats, behaviour: Floats, mask: Mask, log_clamp: float | None = 20.0) -> list[list[float]]:
    """x at every valid token, clamped; 0 at masked ones."""

    def one(i: int, t: int) -> float:
        x = old[i][t] - behaviour[i][t]
        return x if log_clamp is None else min(max(x, -log_clamp), log_clamp)

    return [[one(i, t) if keep else 0.0 for t, keep in enumerate(row)] for i, row in enumerate(mask)]


def sequence_log_ratio(xs: Sequence[float], mask: Sequence[bool], level: str, log_clamp: float | None = 20.0) -> float:
    """Sum ("sequence") or mean ("geometric") of x over the valid tokens, clamped."""
    count = sum(mask) if level == "geometric" else 1
    x = math.fsum(value for value, keep in zip(xs, mask, strict=True) if keep) / max(count, 1)
    return x if log_clamp is None else min(max(x, -log_clamp), log_clamp)


def ratios(old: Floats, behaviour: Floats, mask: Mask, level: str, log_clamp: float | None = 20.0) -> Weights:
    """rho of each token, or of its sequence as a product ("sequence") or geometric mean; 0 at masked tokens."""
    if level == "token":
        xs = log_ratios(old, behaviour, mask, log_clamp)
    else:
        raw = log_ratios(old, behaviour, mask, None)
        xs = [[sequence_log_ratio(raw[i], row, level, log_clamp)] * len(row) for i, row in enumerate(mask)]
    return [[math.exp(xs[i][t]) if keep else 0.0 for t, keep in enumerate(row)] for i, row in enumerate(mask)]


def truncate(weights: Weights, mask: Mask, low: float | None, high: float | None) -> Weights:
    """Truncated importance sampling: rho between the bounds (fengyao.notion.site/off-policy-rl)."""

    def one(w: float) -> float:
        return min(max(w, -math.inf if low is None else low), math.inf if high is None else high)

    return [
        [one(w) if keep else 0.0 for w, keep in zip(ws, row, strict=True)]
        for ws, row in zip(weights, mask, strict=True)
    ]


def inside(weights: Weights, mask: Mask, low: float | None, high: float | None) -> Kept:
    """Valid tokens with low <= rho <= high, bounds included."""
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return [
        [keep and least <= w <= most for w, keep in zip(ws, row, strict=True)]
        for ws, row in zip(weights, mask, strict=True)
    ]


def zero_outside(weights: Weights, mask: Mask, low: float | None, high: float | None) -> Weights:
    """IcePop: rho inside the bounds, 0 outside."""
    keep = inside(weights, mask, low, high)
    return [[w if k else 0.0 for w, k in zip(ws, ks, strict=True)] for ws, ks in zip(weights, keep, strict=True)]


def sequence_mask(
    old: Floats, behaviour: Floats, mask: Mask, level: str, low: float | None, high: float | None
) -> Kept:
    """Keep a sequence iff its product or geometric-mean ratio lies inside the bounds."""
    return inside(ratios(old, behaviour, mask, level), mask, low, high)


def outlier_mask(old: Floats, behaviour: Floats, mask: Mask, low: float | None, high: float | None) -> Kept:
    """Keep a sequence iff every valid token's rho lies inside the bounds; ``low`` alone is a veto."""
    tokens = inside(ratios(old, behaviour, mask, "token"), mask, low, high)
    whole = [all(k for k, keep in zip(ks, row, strict=True) if keep) for ks, row in zip(tokens, mask, strict=True)]
    return [[keep and whole[i] for keep in row] for i, row in enumerate(mask)]


def both(a: Kept, b: Kept) -> Kept:
    return [[x and y for x, y in zip(xs, ys, strict=True)] for xs, ys in zip(a, b, strict=True)]


def batch_normalized(weights: Weights, mask: Mask, by: str) -> Weights:
    """Weights over their mean: over valid tokens, or over sequences of their token means ("sequence")."""
    rows = [[w for w, keep in zip(ws, row, strict=True) if keep] for ws, row in zip(weights, mask, strict=True)]
    entries = [w for row in rows for w in row] if by == "token" else [math.fsum(row) / len(row) for row in rows if row]
    centre = math.fsum(entries) / len(entries) if entries else 0.0
    return weights if centre <= 0 else [[w / centre for w in ws] for ws in weights]


_STATISTICS: dict[str, Callable[[float], float]] = {
    "ratio": lambda x: x,
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.exp(x) - 1 - x,
    "reverse_k3": lambda x: math.exp(-x) - 1 + x,
}
_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
}


def statistic_mask(xs: Floats, mask: Mask, statistic: str, level: str, low: float | None, high: float | None) -> Kept:
    """Keep where the statistic of x lies between the bounds; level "token", or "sum", "mean", "max" of a sequence.

    The bounds of "ratio" bound exp of the aggregated x.
    """
    of = _STATISTICS[statistic]

    def within(value: float) -> bool:
        value = math.exp(value) if statistic == "ratio" else value
        return (low is None or value >= low) and (high is None or value <= high)

    if level == "token":
        return [[keep and within(of(xs[i][t])) for t, keep in enumerate(row)] for i, row in enumerate(mask)]
    values = [[of(x) for x, keep in zip(xs[i], row, strict=True) if keep] for i, row in enumerate(mask)]
    whole = [not entries or within(_AGGREGATES[level](entries)) for entries in values]
    return [[keep and whole[i] for keep in row] for i, row in enumerate(mask)]


def second_moment_mask(old: Floats, behaviour: Floats, mask: Mask, threshold: float) -> Kept:
    """M2PO: drop the tokens with the largest x^2 until the mean of the rest is below the threshold; keep >= 1.

    arXiv 2510.01161.
    """
    positions = [(i, t) for i, row in enumerate(mask) for t, keep in enumerate(row) if keep]
    left = sorted(positions, key=lambda p: (old[p[0]][p[1]] - behaviour[p[0]][p[1]]) ** 2)
    while len(left) > 1 and _second_moment(old, behaviour, left) >= threshold:
        left.pop()
    return [[(i, t) in left for t in range(len(row))] for i, row in enumerate(mask)]


def _second_moment(old: Floats, behaviour: Floats, positions: Sequence[tuple[int, int]]) -> float:
    return math.fsum((old[i][t] - behaviour[i][t]) ** 2 for i, t in positions) / len(positions)


def interpolated_proximal(
    log_probs: Floats, behaviour: Floats, versions: Sequence[Sequence[int]], current: int
) -> Weights:
    """Proximal log-probs b + a (l - b), a = (v - 1 - v_b) / (v - v_b) in [0, 1]; 0 for v_b < 0 (AReaL, 2505.24298)."""

    def share(version: int) -> float:
        if version < 0 or version >= current:
            return 0.0
        return min(max((current - 1 - version) / (current - version), 0.0), 1.0)

    return [
        [b + share(v) * (new - b) for new, b, v in zip(log_probs[i], behaviour[i], versions[i], strict=True)]
        for i in range(len(log_probs))
    ]
