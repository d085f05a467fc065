"""Mismatch metrics: by hand, against loops, and the ways in which they were wrong elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from rollout_contract.errors import MissingFieldError, MutatedError
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.schemas import Scored
from tests.corrections.batches import QUICK, Drawn, drawn, make, of_ratios


def test_by_hand() -> None:
    # Trainer -1, -2 | -1; sampler -1.5, -1.5 | -1: x = 0.5, -0.5 | 0. The second row's second token is masked.
    batch = make([[-1.0, -2.0], [-1.0, float("nan")]], [[-1.5, -1.5], [-1.0, 0.0]], [[True, True], [True, False]])
    up, down = math.exp(0.5), math.exp(-0.5)
    js = [_js(-1.0, -1.5), _js(-2.0, -1.5), 0.0]
    assert mismatch_metrics(batch, high=1.5).compute() == pytest.approx(
        {
            "k1": 0.0,
            "k3": (up - 1.5 + down - 0.5) / 3,
            "chi2_token": (math.e + 1 / math.e - 2) / 3,
            "jensen_shannon": sum(js) / 3,
            "abs_diff_mean": 1 / 3,
            "abs_diff_max": 0.5,
            "probability_error": (2 * up + 1) / 3,
            "ratio_mean": (up + down + 1) / 3,
            "ratio_min": down,
            "ratio_max": up,
            "ratio_std": math.sqrt((math.e + 1 / math.e + 1) / 3 - ((up + down + 1) / 3) ** 2),
            "ratio_deviation": (up - 1 + 1 - down) / 3,
            "ess": (up + down + 1) ** 2 / (3 * (math.e + 1 / math.e + 1)),
            "fraction_high": 1 / 3,
            "fraction_low": 1 / 3,
            "trainer_log_perplexity": 1.25,
            "rollout_log_perplexity": 1.25,
            "trainer_perplexity": (math.exp(1.5) + math.e) / 2,
            "rollout_perplexity": (math.exp(1.5) + math.e) / 2,
            "log_perplexity_gap": 0.0,
            "log_perplexity_gap_abs": 0.0,
            "log_perplexity_gap_max": 0.0,
            "log_perplexity_gap_min": 0.0,
            "perplexity_ratio": 1.0,
            "chi2_sequence": 0.0,
        },
        abs=1e-12,
    )


def _js(a: float, b: float) -> float:
    middle = (math.exp(a) + math.exp(b)) / 2
    return sum(math.exp(p) / middle - math.log(math.exp(p) / middle) - 1 for p in (a, b)) / 2


def test_gaps_of_sequences() -> None:
    # Means of x: 1 and -2 over the sequences, so the gaps (trainer's log-perplexity minus the sampler's) are -1 and 2.
    found = mismatch_metrics(make([[-1.0, -1.0], [-3.0]], [[-2.0, -2.0], [-1.0]])).compute()
    assert found["log_perplexity_gap"] == pytest.approx(0.5)
    assert found["log_perplexity_gap_abs"] == pytest.approx(1.5)
    assert found["log_perplexity_gap_max"] == pytest.approx(2.0)
    assert found["log_perplexity_gap_min"] == pytest.approx(-1.0)
    assert found["perplexity_ratio"] == pytest.approx((math.exp(-1) + math.exp(2)) / 2)
    assert found["chi2_sequence"] == pytest.approx((math.exp(4) + math.exp(-4)) / 2 - 1)


def test_a_perfect_match() -> None:
    found = mismatch_metrics(make([[-1.0, -2.0]], [[-1.0, -2.0]], dtype=torch.float32)).compute()
    zeros = (
        "k1",
        "k3",
        "chi2_token",
        "jensen_shannon",
        "abs_diff_mean",
        "abs_diff_max",
        "ratio_std",
        "ratio_deviation",
    )
    assert all(abs(found[name]) < 1e-15 for name in zeros)
    assert (found["probability_error"], found["ratio_mean"], found["ess"]) == (1.0, 1.0, 1.0)


@QUICK
@given(case=drawn(spread=5.0))
def test_token_means_match_loops(case: Drawn) -> None:
    found = mismatch_metrics(case.batch()).compute()
    pairs = [
        (old, roll)
        for olds, rolls, mask in zip(case.old, case.rollout, case.mask, strict=True)
        for old, roll, keep in zip(olds, rolls, mask, strict=True)
        if keep
    ]
    formulas = {
        "k1": lambda o, r: r - o,
        "k3": lambda o, r: math.exp(o - r) - 1 - (o - r),
        "chi2_token": lambda o, r: math.exp(2 * (o - r)) - 1,
        "jensen_shannon": _js,
        "abs_diff_mean": lambda o, r: abs(o - r),
        "probability_error": lambda o, r: math.exp(abs(o - r)),
        "ratio_mean": lambda o, r: math.exp(o - r),
        "ratio_deviation": lambda o, r: abs(math.exp(o - r) - 1),
    }
    for name, formula in formulas.items():
        expected = sum(formula(o, r) for o, r in pairs) / max(len(pairs), 1)
        assert found[name] == pytest.approx(expected, rel=1e-8, abs=1e-8), name
    if pairs:
        ratios = [math.exp(o - r) for o, r in pairs]
        assert found["ess"] == pytest.approx(sum(ratios) ** 2 / (len(ratios) * sum(x * x for x in ratios)))
        assert found["ratio_max"] == pytest.approx(max(ratios))
        assert found["abs_diff_max"] == pytest.approx(max(abs(o - r) for o, r in pairs))


@QUICK
@given(case=drawn(spread=5.0))
def test_sequence_means_match_loops(case: Drawn) -> None:
    found = mismatch_metrics(case.batch()).compute()
    rows = []
    for olds, rolls, mask in zip(case.old, case.rollout, case.mask, strict=True):
        kept = [(o, r) for o, r, keep in zip(olds, rolls, mask, strict=True) if keep]
        if kept:
            rows.append((sum(o for o, _ in kept) / len(kept), sum(r for _, r in kept) / len(kept), len(kept)))
    count = max(len(rows), 1)
    assert found["trainer_perplexity"] == pytest.approx(sum(math.exp(-o) for o, _, _ in rows) / count)
    assert found["rollout_log_perplexity"] == pytest.approx(sum(-r for _, r, _ in rows) / count)
    assert found["log_perplexity_gap"] == pytest.approx(sum(r - o for o, r, _ in rows) / count, abs=1e-9)
    assert found["log_perplexity_gap_abs"] == pytest.approx(sum(abs(r - o) for o, r, _ in rows) / count, abs=1e-9)
    assert found["perplexity_ratio"] == pytest.approx(sum(math.exp(r - o) for o, r, _ in rows) / count)
    chi2 = sum(math.exp(2 * n * (o - r)) - 1 for o, r, n in rows) / count
    assert found["chi2_sequence"] == pytest.approx(chi2, rel=1e-6, abs=1e-6)


@QUICK
@given(case=drawn(spread=5.0))
def test_they_merge_over_a_split(case: Drawn) -> None:
    batch = case.batch()
    parts = [mismatch_metrics(part) for part in batch.split(samples=1)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert merged.compute() == pytest.approx(mismatch_metrics(batch).compute(), rel=1e-9, abs=1e-9)


@QUICK
@given(case=drawn(spread=5000.0))
def test_they_are_numbers_for_extreme_scores(case: Drawn) -> None:
    found = mismatch_metrics(case.batch(torch.float32)).compute()
    if any(keep for row in case.mask for keep in row):
        assert all(math.isfinite(number) for number in found.values()), found
    assert 0 <= found["ess"] <= 1 + 1e-9
    assert found["k3"] >= 0


def test_nothing_to_measure() -> None:
    for batch in (make([[-1.0]], [[-2.0]], [[False]]), make([[-1.0], []], [[-2.0], []], [[False], []])):
        found = mismatch_metrics(batch).compute()
        assert not any(math.isnan(number) for number in found.values())
        assert (found["k1"], found["ess"], found["trainer_perplexity"]) == (0.0, 1.0, 0.0)


def test_one_huge_ratio_has_the_sample_size_of_one_token() -> None:
    found = mismatch_metrics(make([[-1.0] * 4], [[-1.0, -1.0, -1.0, -700.0]])).compute()
    assert found["ess"] == pytest.approx(0.25)
    assert found["abs_diff_max"] == 699.0


def test_half_of_the_ratios_out_of_range() -> None:
    found = mismatch_metrics(of_ratios([[0.4, 0.6, 2.5, 3.0]])).compute()
    assert (found["fraction_low"], found["fraction_high"]) == (0.25, 0.5)
    found = mismatch_metrics(of_ratios([[0.4, 0.6, 2.5, 3.0]]), low=0.7, high=2.75).compute()
    assert (found["fraction_low"], found["fraction_high"]) == (0.5, 0.25)


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_they_need_the_samplers_scores_and_an_unedited_batch() -> None:
    scored = Scored(response_lengths=[1], loss_mask=[[1]], old_log_probs=[[-1.0]])
    with pytest.raises(MissingFieldError, match="rollout_log_probs"):
        mismatch_metrics(scored)  # type: ignore[arg-type]
    batch = make([[-1.0]], [[-2.0]])
    batch.old_log_probs.sub_(1.0)
    with pytest.raises(MutatedError):
        mismatch_metrics(batch)
