"""What the policy objectives report about their ratios."""

from __future__ import annotations

from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.policy import ClipHits
from rollout_contract.metrics import Metric
from rollout_contract.schema.batch import RolloutBatch


def segments(batch: RolloutBatch) -> tuple[Tensor, Tensor, int]:
    """(loss mask, sample of each token, number of samples): what the kernels over samples take."""
    mask: Tensor = batch.loss_mask
    return mask, batch.layout.sample_ids(mask.device), batch.layout.num_samples


def ratio_metrics(log_ratio: Tensor, mask: Tensor, bound: float | None = None) -> dict[str, Metric]:
    """Of a log-ratio before any bound, which is where one sees that something is wrong.

    ``approx_kl``: mean of -log_ratio in nats (k1; verl's and miles' ``ppo_kl``). ``log_ratio_max``, ``log_ratio_min``.
    ``log_ratio_bounded``: share of tokens whose log-ratio the bound changed; they have no gradient.
    """
    log_ratio = log_ratio.detach()
    found = {
        "approx_kl": metrics.mean(-log_ratio, mask),
        "log_ratio_max": metrics.maximum(log_ratio, mask),
        "log_ratio_min": metrics.minimum(log_ratio, mask),
    }
    if bound is not None:
        found["log_ratio_bounded"] = metrics.fraction(log_ratio.abs() > bound, mask)
    return found


def clip_metrics(hits: ClipHits, mask: Tensor) -> dict[str, Metric]:
    """Shares of the trained tokens.

    ``clip_fraction``: the clipped branch is strictly larger, either way. ``clip_fraction_low``: A < 0 and the ratio
    below its bound. ``clip_fraction_high``: A > 0 and above. ``clip_fraction_dual``: A < 0 and above dual clip or cap.
    """
    return {
        "clip_fraction": metrics.fraction(hits.low | hits.high, mask),
        "clip_fraction_low": metrics.fraction(hits.low, mask),
        "clip_fraction_high": metrics.fraction(hits.high, mask),
        "clip_fraction_dual": metrics.fraction(hits.dual, mask),
    }


def bound_metrics(ratio: Tensor, low: float, high: float, mask: Tensor) -> dict[str, Metric]:
    """Shares of the trained tokens whose ratio lies outside [low, high], whatever the sign of the advantage."""
    ratio = ratio.detach()
    below, above = ratio < low, ratio > high
    return {
        "clip_fraction": metrics.fraction(below | above, mask),
        "clip_fraction_low": metrics.fraction(below, mask),
        "clip_fraction_high": metrics.fraction(above, mask),
    }
