"""What the policy objectives report about their ratios."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.policy import ClipHits
from rollout_contract.metrics import Metric
from rollout_contract.schema.batch import RolloutBatch


def segments(batch: RolloutBatch) -> tuple[Tensor, Tensor, int]:
    """(loss mask, sample of each token, number of samples): what the kernels over samples take."""
    mask: Tensor = batch.loss_mask
    return mask, batch.layout.sample_ids(mask.device), batch.layout.num_samples


def shares(hits: Mapping[str, Tensor], mask: Tensor) -> dict[str, Metric]:
    """Of several conditions, the shares of the trained tokens at which they hold."""
    return {name: metrics.fraction(hit, mask) for name, hit in hits.items()}


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
    return found if bound is None else found | shares({"log_ratio_bounded": log_ratio.abs() > bound}, mask)


def clip_metrics(hits: ClipHits, mask: Tensor) -> dict[str, Metric]:
    """Shares of the trained tokens.

    ``clip_fraction``: the clipped branch is strictly larger, either way. ``clip_fraction_low``: A < 0 and the ratio
    below its bound. ``clip_fraction_high``: A > 0 and above. ``clip_fraction_dual``, where there is a dual clip or a
    cap: A < 0 and above it.
    """
    dual = {} if hits.dual is None else {"clip_fraction_dual": hits.dual}
    both = {"clip_fraction": hits.low | hits.high, "clip_fraction_low": hits.low, "clip_fraction_high": hits.high}
    return shares(both | dual, mask)


def bound_metrics(ratio: Tensor, low: float, high: float, mask: Tensor) -> dict[str, Metric]:
    """Shares of the trained tokens whose ratio lies outside [low, high], whatever the sign of the advantage."""
    ratio = ratio.detach()
    below, above = ratio < low, ratio > high
    hits = {"clip_fraction": below | above, "clip_fraction_low": below, "clip_fraction_high": above}
    return shares(hits, mask)
