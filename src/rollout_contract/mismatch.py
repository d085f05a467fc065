"""How far the rollout engine's scores are from the trainer's: metrics, before anything is bounded or dropped.

All of them are sums over tokens or over sequences (or extremes), so they merge over micro-batches and ranks. They are
computed in float64 where the device has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels import importance, kl
from rollout_contract.kernels import mismatch as kernels
from rollout_contract.kernels.precision import widened
from rollout_contract.losses.inputs import read, require
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import TISBatch

SATURATION = {torch.float64: 300.0, torch.float32: 40.0}
"""Exponents are cut here, in nats, so that sums of squared ratios stay finite and no metric becomes NaN."""


def mismatch_metrics(batch: TISBatch, *, high: float = 2.0, low: float | None = None) -> Metrics:
    """Metrics of the distance between ``rollout_log_probs`` and ``old_log_probs`` on the trained tokens, in nats.

    With x = old - rollout on a token and the importance ratio e^x:

    * means over tokens: ``k1`` (-x) and ``k3`` (e^x - 1 - x), two estimates of KL(rollout || trainer); ``chi2_token``
      (e^2x - 1); ``jensen_shannon``; ``abs_diff_mean`` (``|x|``); ``probability_error`` (e^|x|, 1 for a perfect match);
    * the ratio over tokens: ``ratio_mean``, ``ratio_min``, ``ratio_max``, ``ratio_std``, ``ratio_deviation``
      (mean ``|e^x - 1|``), ``ess`` (effective sample size as a fraction), ``fraction_high``, ``fraction_low``;
    * ``abs_diff_max``: the largest ``|x|``;
    * means over sequences: ``trainer_log_perplexity`` and ``rollout_log_perplexity`` (minus the mean log-prob), their
      exponentials ``trainer_perplexity`` and ``rollout_perplexity``; the first two's difference as
      ``log_perplexity_gap``, with ``..._gap_abs``, ``..._gap_max``, ``..._gap_min`` and, exponentiated,
      ``perplexity_ratio``; ``chi2_sequence`` (e^2X - 1, X the sum of x over the sequence).

    Sequences without a trained token do not count. Source: joschu.net/blog/kl-approx for the estimates; the choice is
    what miles, verl, TRL and NeMo-RL report together.

    Args:
        high, low: the range of the ratio that ``fraction_high`` and ``fraction_low`` refer to; ``low`` is 1 / high
            when absent.
    """
    require(batch, TISBatch, "mismatch_metrics")
    trainer, rollout = widened(read(batch, "old_log_probs")), widened(read(batch, "rollout_log_probs"))
    x, mask = trainer - rollout, batch.loss_mask
    found = _token_metrics(trainer, rollout, x, mask)
    found |= ratio_metrics(x, mask, 1 / high if low is None else low, high)
    found |= _sequence_metrics(batch, trainer, rollout)
    return Metrics(found)


def samples_with(batch: RolloutBatch, hits: Tensor) -> Tensor:
    """[batch] bool: the samples with a trained token at which ``hits`` [tokens] is True."""
    mask: Tensor = batch.loss_mask
    return importance.sequence_any(hits, mask, batch.layout.sample_ids(mask.device), batch.layout.num_samples)


def saturated(exponents: Tensor) -> Tensor:
    bound = SATURATION[exponents.dtype]
    return exponents.clamp(-bound, bound)


def ratio_metrics(log_ratio: Tensor, present: Tensor, low: float | None, high: float | None) -> dict[str, Metric]:
    """Statistics of the ratio e^log_ratio where ``present``, and how much of it lies outside ``[low, high]``."""
    ratio = saturated(log_ratio).exp()
    return {
        "ratio_mean": metrics.mean(ratio, present),
        "ratio_min": metrics.minimum(ratio, present),
        "ratio_max": metrics.maximum(ratio, present),
        "ratio_std": metrics.std(ratio, present),
        "ratio_deviation": metrics.mean((ratio - 1).abs(), present),
        "ess": metrics.effective_fraction(ratio, present),
        "fraction_high": metrics.fraction(importance.above(ratio, high), present),
        "fraction_low": metrics.fraction(importance.below(ratio, low), present),
    }


def _token_metrics(trainer: Tensor, rollout: Tensor, x: Tensor, mask: Tensor) -> dict[str, Metric]:
    bounded = saturated(x)
    return {
        "k1": metrics.mean(kl.k1(-x), mask),
        "k3": metrics.mean(kl.k3(-bounded), mask),
        "chi2_token": metrics.mean(kernels.chi_squared(bounded), mask),
        "jensen_shannon": metrics.mean(kernels.jensen_shannon(trainer, rollout), mask),
        "abs_diff_mean": metrics.mean(x.abs(), mask),
        "abs_diff_max": metrics.maximum(x.abs(), mask),
        "probability_error": metrics.mean(kernels.probability_error(bounded), mask),
    }


def _sequence_metrics(batch: TISBatch, trainer: Tensor, rollout: Tensor) -> dict[str, Metric]:
    layout, mask = batch.layout, batch.loss_mask
    present = samples_with(batch, mask)
    log_trainer, log_rollout = -layout.mean(trainer, mask), -layout.mean(rollout, mask)
    gap = log_trainer - log_rollout
    product = layout.sum(trainer - rollout)
    return {
        "trainer_log_perplexity": metrics.mean(log_trainer, present),
        "rollout_log_perplexity": metrics.mean(log_rollout, present),
        "trainer_perplexity": metrics.mean(saturated(log_trainer).exp(), present),
        "rollout_perplexity": metrics.mean(saturated(log_rollout).exp(), present),
        "log_perplexity_gap": metrics.mean(gap, present),
        "log_perplexity_gap_abs": metrics.mean(gap.abs(), present),
        "log_perplexity_gap_max": metrics.maximum(gap, present),
        "log_perplexity_gap_min": metrics.minimum(gap, present),
        "perplexity_ratio": metrics.mean(saturated(gap).exp(), present),
        "chi2_sequence": metrics.mean(kernels.chi_squared(saturated(product)), present),
    }
