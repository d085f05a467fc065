"""This library's metrics under verl's names."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_contract.metrics import Metrics

_POLICY: Mapping[str, str] = {
    "clip_fraction": "pg_clipfrac",
    "dropped_fraction": "pg_clipfrac",
    "clip_fraction_dual": "pg_clipfrac_lower",
    "approx_kl": "ppo_kl",
    "abs_kl": "ppo_kl",
}
"""Where an objective has two of a name, the later one is what verl means."""

_MISMATCH: Mapping[str, str] = {
    "k1": "kl",
    "k3": "k3_kl",
    "trainer_perplexity": "training_ppl",
    "trainer_log_perplexity": "training_log_ppl",
    "rollout_perplexity": "rollout_ppl",
    "rollout_log_perplexity": "rollout_log_ppl",
    "log_perplexity_gap": "log_ppl_diff",
    "log_perplexity_gap_abs": "log_ppl_abs_diff",
    "perplexity_ratio": "ppl_ratio",
    "chi2_token": "chi2_token",
    "chi2_sequence": "chi2_seq",
}


def reported(metrics: Metrics) -> dict[str, float]:
    """What a policy loss returns beside the loss, with one device synchronisation.

    Extremes are left out, because verl takes the mean of these numbers over micro-batches; so is the loss, which it
    reports itself.
    """
    numbers = _averageable(metrics).compute()
    found = {f"actor/{name}": number for name, number in numbers.items() if name not in _POLICY}
    return found | {f"actor/{verls}": numbers[ours] for ours, verls in _POLICY.items() if ours in numbers}


def reported_mismatch(mismatch: Metrics, correction: Metrics) -> dict[str, float]:
    """What bypass mode returns about the distance between the policy and the sampler."""
    numbers = _averageable(mismatch.merge(correction)).compute()
    return {f"rollout_corr/{_MISMATCH.get(name, name)}": number for name, number in numbers.items()}


def _averageable(metrics: Metrics) -> Metrics:
    kept = {name: metric for name, metric in metrics.items() if metric.kind not in ("max", "min", "sum")}
    return Metrics(kept)
