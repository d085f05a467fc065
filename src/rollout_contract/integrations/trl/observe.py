"""What is logged: under TRL's names what TRL logs, and what this library adds. Nothing here waits for the device."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.integrations.trl.configuration import GRPOStep, SampledStep
from rollout_contract.integrations.trl.step import Losses
from rollout_contract.kernels.policy import clip_hits
from rollout_contract.kernels.ratio import bounded, sequence_mean_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import CISPO, GSPO, VESPO, Objective
from rollout_contract.objectives.clipped import ClippedObjective
from rollout_contract.objectives.observe import segments

PREFIX = "contract/"


@torch.no_grad()
def trl_metrics(step: GRPOStep, loss: Losses, objective: Objective) -> Metrics:
    """Of one micro-batch, what TRL logs about the loss, under its names."""
    found = {"entropy": metrics.mean(read(step, "observed_entropy"), step.loss_mask)}
    if "kl" in loss.policy.metrics:
        found["kl"] = loss.policy.metrics["kl"]
    if isinstance(objective, ClippedObjective):
        found |= _clip_ratios(step, objective)
    elif isinstance(objective, CISPO):
        raised = _ratio(step, objective.log_ratio_bound, of_samples=False) > objective.ratio_max
        found["cispo_clip_ratio"] = metrics.fraction(raised & (read(step, "advantages") > 0), step.loss_mask)
    elif isinstance(objective, VESPO):
        phi = step.layout.mean(objective.weights(step), step.loss_mask)
        found["vespo/phi_seq_mean"] = _over_samples(phi.where(_trains(step), 1.0))
    return Metrics(found)


def own_metrics(step: GRPOStep, loss: Losses) -> Metrics:
    """What this library adds; mergeable over micro-batches. Sums are left out: they would add up over steps."""
    found = {name: metric for name, metric in loss.total.metrics.items() if metric.kind != "sum"}
    if step.has("rollout_log_probs"):
        sampled = cast("SampledStep", step)
        found |= mismatch_metrics(sampled).prefixed("mismatch")
        found["mismatch/unscored"] = metrics.fraction(sampled.unscored, step.loss_mask)
    return Metrics({f"{PREFIX}{name}": metric for name, metric in found.items()})


def number(value: Tensor) -> Metric:
    """A metric of one number: its mean over ranks."""
    return Metric("mean", metrics.parts(value.detach(), torch.ones_like(value)))


def _clip_ratios(step: GRPOStep, objective: ClippedObjective) -> dict[str, Metric]:
    """Shares of clipped tokens, or (one ratio per sample) of clipped samples; the extremes are those of a sample."""
    of_samples, layout = isinstance(objective, GSPO), step.layout
    # TRL looks at the capped ratio.
    ratio = _ratio(step, objective.log_ratio_bound, of_samples).clamp(max=objective.ratio_cap or math.inf)
    hits = clip_hits(ratio, read(step, "advantages", like=ratio), objective.clip_low, objective.clip_high)
    found: dict[str, Metric] = {}
    shares: dict[str, Tensor] = {}
    for name, hit in (("low", hits.low), ("high", hits.high), ("region", hits.low | hits.high)):
        share = hit.to(ratio.dtype)
        shares[name] = layout.max(share) if of_samples else layout.mean(share, step.loss_mask)
        mean = _over_samples(shares[name]) if of_samples else metrics.fraction(hit, step.loss_mask)
        found[f"clip_ratio/{name}_mean"] = mean
    trains = _trains(step)
    counted = torch.ones_like(trains) if of_samples else trains
    found["clip_ratio/low_min"] = metrics.minimum(shares["low"], counted)
    found["clip_ratio/high_max"] = metrics.maximum(shares["high"], counted)
    return found


def _ratio(step: GRPOStep, bound: float | None, of_samples: bool) -> Tensor:
    log_probs = read(step, "log_probs").detach()
    log_ratio = log_probs - read(step, "old_log_probs", like=log_probs)
    if of_samples:
        log_ratio = sequence_mean_log_ratio(log_ratio, *segments(step))
    return bounded(log_ratio, bound).exp()


def _trains(step: GRPOStep) -> Tensor:
    """[batch] bool: the samples with a trained token."""
    return step.layout.max(step.loss_mask.to(torch.float32)) > 0


def _over_samples(values: Tensor) -> Metric:
    return metrics.mean(values, torch.ones_like(values, dtype=torch.bool))


class Pending:
    """Metrics of micro-batches that nobody has read from the device yet."""

    def __init__(self) -> None:
        self._apart: list[Metrics] = []
        self._merged = Metrics()

    def add(self, apart: Metrics, merged: Metrics) -> None:
        """Keep some apart for each micro-batch, since TRL averages them; merge the others as the library does."""
        self._apart.append(apart)
        self._merged = self._merged.merge(merged)

    def take(self, over_ranks: bool) -> list[tuple[str, float]]:
        """Every number, with one synchronisation; nothing is pending afterwards. NaN stands for no value at all."""
        named = [pair for found in (*self._apart, self._merged) for pair in found.items()]
        self._apart, self._merged = [], Metrics()
        flat = Metrics({str(place): metric for place, (_, metric) in enumerate(named)})
        numbers = (flat.all_reduce() if over_ranks else flat).compute().values()
        return [
            (name, value if math.isfinite(value) else math.nan) for (name, _), value in zip(named, numbers, strict=True)
        ]
