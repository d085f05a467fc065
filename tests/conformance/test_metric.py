"""Metrics give the numbers that the trainers report.

A trainer that sums, over sequences, what it averages over their tokens is matched by summing the library's metric over
one-sample batches. A number that the library does not report by itself is composed of its public helpers.
"""

from __future__ import annotations

import pytest
import torch

from rollout_contract import metrics
from rollout_contract.kernels import kl
from tests.conformance import policy_measures as policy
from tests.conformance import rollout_measures as rollout
from tests.conformance.harness import Vector, vectors
from tests.conformance.measures import Measure
from tests.conformance.rollout_steps import (
    tensor_of,
)


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
@pytest.mark.parametrize("vector", vectors("metric"), ids=lambda vector: vector.id)
def test_metric(vector: Vector) -> None:
    name = vector.params["metric"]
    if name == "k3_per_token":
        log_ratio = tensor_of(vector, "behaviour") - tensor_of(vector, "old")
        vector.check(kl.k3(log_ratio.flatten()).reshape(log_ratio.shape))
        return
    measure = MEASURES[vector.params["output"] if name == "full" else name]
    vector.check(torch.tensor(measure(vector), dtype=torch.float64))


MEASURES: dict[str, Measure] = {
    "clipfrac": policy.policy("clip_fraction"),
    "dual_clipfrac": policy.policy("clip_fraction_dual"),
    "cispo_clipfrac": policy.policy("clip_fraction"),
    "dropped_fraction": policy.policy("dropped_fraction"),
    "old_minus_lp": policy.policy("approx_kl"),
    "ppo_kl": policy.policy("approx_kl"),
    "abs_old_minus_lp": policy.policy("abs_kl"),
    "trl_low_clip": policy.policy("clip_fraction_low"),
    "trl_high_clip": policy.policy("clip_fraction_high"),
    "trl_region_clip": policy.policy("clip_fraction"),
    "trl_low_min": policy.policy_extreme("clip_fraction_low", min),
    "trl_high_max": policy.policy_extreme("clip_fraction_high", max),
    "trl_cispo_clip": policy.hits(policy.raised_above_cap),
    "geo_clip_high": policy.hits(policy.raised_outside_clip),
    "geo_clip_low": policy.hits(policy.lowered_outside_clip),
    "opsm_clipfrac": policy.opsm_fraction,
    "ratio_mean": policy.moved("ratio_mean"),
    "ratio_max": policy.moved("ratio_max"),
    "ratio_min": policy.moved("ratio_min"),
    "ois": policy.moved("ratio_mean"),
    "nemo_probs_ratio": policy.moved("ratio_mean"),
    "nemo_probs_ratio_min": policy.moved("ratio_min"),
    "nemo_probs_ratio_max": policy.moved("ratio_max"),
    "ratio_clamped_mean": policy.clipped_ratio(metrics.mean),
    "nemo_probs_ratio_clamped": policy.clipped_ratio(metrics.mean),
    "nemo_probs_ratio_clamped_min": policy.clipped_ratio(metrics.minimum),
    "nemo_probs_ratio_clamped_max": policy.clipped_ratio(metrics.maximum),
    "ess": policy.effective_samples,
    "ess_ratio": policy.effective_samples,
    "nemo_approx_entropy": policy.sampled_entropy,
    "prime_masked_mismatch_kl": policy.prime("mismatch_k3_dropped"),
    "prime_unmasked_mismatch_kl": policy.prime("mismatch_k3_kept"),
    "prime_is_masked": policy.prime("dropped_fraction"),
    "prime_is_masked_low": policy.prime("dropped_fraction_low"),
    "prime_is_masked_high": policy.prime("dropped_fraction_high"),
    "prime_masked_advantage_positive": policy.prime("positive"),
    "prime_masked_advantage_negative": policy.prime("negative"),
    "prime_ref_kl": policy.teacher_gap,
    "prime_nll": policy.prime("nll"),
    "behaviour_minus_old": rollout.mismatch("k1"),
    "kl": rollout.mismatch("k1"),
    "verl_kl": rollout.mismatch("k1"),
    "k3_kl": rollout.mismatch("k3"),
    "verl_k3_kl": rollout.mismatch("k3"),
    "nemo_gen_kl_error": rollout.mismatch("k3"),
    "nemo_policy_kl_error": rollout.reverse_mismatch("k3"),
    "nemo_js_divergence_error": rollout.mismatch("jensen_shannon"),
    "nemo_token_mult_prob_error": rollout.mismatch("probability_error"),
    "nemo_sampling_importance_ratio": rollout.mismatch("ratio_mean"),
    "train_rollout_logprob_abs_diff": rollout.mismatch("abs_diff_mean"),
    "train_rollout_kl": rollout.low_variance_kl,
    "training_ppl": rollout.mismatch("trainer_perplexity"),
    "verl_training_ppl": rollout.mismatch("trainer_perplexity"),
    "verl_training_log_ppl": rollout.mismatch("trainer_log_perplexity"),
    "rollout_ppl": rollout.mismatch("rollout_perplexity"),
    "verl_rollout_ppl": rollout.mismatch("rollout_perplexity"),
    "verl_rollout_log_ppl": rollout.mismatch("rollout_log_perplexity"),
    "log_ppl_diff": rollout.mismatch("log_perplexity_gap"),
    "verl_log_ppl_diff": rollout.mismatch("log_perplexity_gap"),
    "log_ppl_abs_diff": rollout.mismatch("log_perplexity_gap_abs"),
    "verl_log_ppl_abs_diff": rollout.mismatch("log_perplexity_gap_abs"),
    "verl_log_ppl_diff_max": rollout.mismatch("log_perplexity_gap_max"),
    "verl_log_ppl_diff_min": rollout.mismatch("log_perplexity_gap_min"),
    "ppl_ratio": rollout.mismatch("perplexity_ratio"),
    "verl_ppl_ratio": rollout.mismatch("perplexity_ratio"),
    "chi2_token": rollout.mismatch("chi2_token"),
    "verl_chi2_token": rollout.mismatch("chi2_token"),
    "chi2_seq": rollout.mismatch("chi2_sequence"),
    "verl_chi2_seq": rollout.mismatch("chi2_sequence"),
    "tis": rollout.corrected("ratio_mean"),
    "tis_clipfrac": rollout.corrected("fraction_high", "fraction_low"),
    "tis_abs": rollout.corrected("ratio_deviation"),
    "nemo_is_oob_ratio": rollout.out_of_bounds,
    "masked_fraction": rollout.rejected_tokens,
    "rollout_is_mean": rollout.verl_weights(metrics.mean, clamped=False),
    "rollout_is_std": rollout.verl_weights(metrics.std, clamped=True),
    "rollout_is_eff_sample_size": rollout.verl_weights(metrics.effective_fraction, clamped=True),
    "rollout_is_max": rollout.verl_ratio("ratio_max"),
    "rollout_is_min": rollout.verl_ratio("ratio_min"),
    "rollout_is_ratio_fraction_high": rollout.verl_ratio("fraction_high"),
    "rollout_is_ratio_fraction_low": rollout.verl_ratio("fraction_low"),
    "rollout_is_seq_mean": rollout.verl_sequences(rollout.of(metrics.mean)),
    "rollout_is_seq_std": rollout.verl_sequences(rollout.unbiased_std),
    "rollout_is_seq_max": rollout.verl_sequences(rollout.of(metrics.maximum)),
    "rollout_is_seq_min": rollout.verl_sequences(rollout.of(metrics.minimum)),
    "rollout_is_seq_max_deviation": rollout.verl_sequences(rollout.largest_deviation),
    "rollout_is_seq_fraction_high": rollout.verl_sequences(rollout.share_high),
    "rollout_is_seq_fraction_low": rollout.verl_sequences(rollout.share_low),
    "skyrl_is_ratio_mean": rollout.mismatch("ratio_mean"),
    "skyrl_is_ratio_std": rollout.skyrl_positions(rollout.unbiased_std),
    "skyrl_is_ratio_max": rollout.skyrl_positions(rollout.of(metrics.maximum)),
    "skyrl_is_ratio_min": rollout.skyrl_positions(rollout.of(metrics.minimum)),
    "skyrl_tis_token_clip_high_ratio": rollout.capped_tokens,
    "skyrl_tis_seq_clip_high_ratio": rollout.capped_sequences,
    "skyrl_geo_sequence_mask_masked_ratio": rollout.rejection("sequence-mean", "rejected"),
    "skyrl_geo_sequence_mask_over_high_ratio": rollout.rejection("sequence-mean", "high"),
    "skyrl_geo_sequence_mask_under_low_ratio": rollout.rejection("sequence-mean", "low"),
    "skyrl_product_sequence_mask_masked_ratio": rollout.rejection("sequence-sum", "rejected"),
    "skyrl_product_sequence_mask_over_high_ratio": rollout.rejection("sequence-sum", "high"),
    "skyrl_product_sequence_mask_under_low_ratio": rollout.rejection("sequence-sum", "low"),
    "skyrl_outlier_seq_masked_ratio": rollout.rejection("sequence-every", "rejected"),
    "skyrl_outlier_seq_over_high_ratio": rollout.rejection("sequence-every", "high"),
    "skyrl_outlier_seq_under_low_ratio": rollout.rejection("sequence-every", "low"),
    "skyrl_token_mask_ratio": rollout.rejection("token", "rejected"),
    "pg_loss": policy.full_policy_loss,
    "entropy_loss": policy.full_entropy,
    "kl_loss": policy.reference_kl,
    "trl_kl": policy.reference_kl,
    "liger_kl": policy.reference_kl,
    "value_clipfrac": policy.critic("value_clip_fraction"),
    "value_moved": policy.critic("value_moved_fraction"),
}
