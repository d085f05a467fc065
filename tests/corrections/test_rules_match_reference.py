"""Every built-in correction against loops over samples and tokens in float64, on batches made by hypothesis."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rollout_contract.corrections import M2PO, Correction, IcePop, Normalize, Reject, Truncate, proximal_log_probs
from tests.corrections.batches import QUICK, Drawn, drawn, packed
from tests.reference import corrections as reference

LEVELS = ("token", "sequence", "geometric")
BOUND = st.none() | st.floats(0.05, 20.0)


def same_weights(correction: Correction, expected: list[list[float]]) -> None:
    assert correction.weights is not None
    torch.testing.assert_close(correction.weights, packed(expected), rtol=1e-9, atol=1e-12)


def same_mask(correction: Correction, expected: list[list[bool]]) -> None:
    assert correction.mask is not None
    assert torch.equal(correction.mask, packed(expected, torch.bool))


def far_from(values: list[float], *bounds: float | None) -> None:
    """Leave out draws in which rounding decides on which side of a bound a value lies."""
    assume(all(abs(v - b) > 1e-9 * max(1.0, abs(b)) for v in values for b in bounds if b is not None))


@pytest.mark.parametrize("level", LEVELS)
@QUICK
@given(case=drawn(), low=BOUND, high=BOUND)
def test_truncate(level: str, case: Drawn, low: float | None, high: float | None) -> None:
    assume(low is None or high is None or low <= high)
    rule = Truncate.model_validate({"low": low, "high": high, "level": level})
    ratios = reference.ratios(case.old, case.rollout, case.mask, level)
    same_weights(rule(case.batch()), reference.truncate(ratios, case.mask, low, high))


@QUICK
@given(case=drawn(spread=60.0))
def test_truncate_of_extreme_ratios(case: Drawn) -> None:
    for level in LEVELS:
        for bound in (20.0, 5.0, None):
            rule = Truncate.model_validate({"high": None, "level": level, "log_ratio_bound": bound})
            ratios = reference.ratios(case.old, case.rollout, case.mask, level, bound)
            assume(all(math.isfinite(ratio) for row in ratios for ratio in row))
            correction = rule(case.batch())
            same_weights(correction, ratios)
            assert not any(math.isnan(number) for number in correction.metrics.compute().values())


@QUICK
@given(case=drawn(), low=BOUND, high=BOUND)
def test_icepop(case: Drawn, low: float | None, high: float | None) -> None:
    assume(low is None or high is None or low <= high)
    ratios = reference.ratios(case.old, case.rollout, case.mask, "token")
    far_from([ratio for row in ratios for ratio in row], low, high)
    correction = IcePop(low=low, high=high)(case.batch())
    same_weights(correction, reference.zero_outside(ratios, case.mask, low, high))
    assert correction.mask is None


@pytest.mark.parametrize("statistic", ["ratio", "k1", "k2", "k3", "reverse_k3"])
@pytest.mark.parametrize("level", ["token", "sequence-sum", "sequence-mean", "sequence-max"])
@QUICK
@given(case=drawn(spread=8.0), low=st.none() | st.floats(-3.0, 3.0), high=st.none() | st.floats(0.0, 9.0))
def test_reject(statistic: str, level: str, case: Drawn, low: float | None, high: float | None) -> None:
    assume((low is not None or high is not None) and (low is None or high is None or low <= high))
    xs = reference.log_ratios(case.old, case.rollout, case.mask)
    over = level.removeprefix("sequence-")
    expected = reference.statistic_mask(xs, case.mask, statistic, over, low, high)
    # If a bound that is moved a little changes the answer, rounding decides.
    for step in (1e-9, -1e-9):
        moved = (None if low is None else low + step, None if high is None else high - step)
        assume(expected == reference.statistic_mask(xs, case.mask, statistic, over, *moved))
    rule = Reject.model_validate({"statistic": statistic, "level": level, "low": low, "high": high})
    correction = rule(case.batch())
    same_mask(correction, expected)
    assert correction.weights is None
    trained = sum(keep for row in case.mask for keep in row)
    stay = sum(keep for row in expected for keep in row)
    found = correction.metrics.compute()[f"reject/{statistic}/{level}/tokens_rejected"]
    assert found == pytest.approx(1 - stay / trained if trained else 0.0)


@QUICK
@given(case=drawn(), low=BOUND, high=BOUND)
def test_reject_sequences_with_any_outlier(case: Drawn, low: float | None, high: float | None) -> None:
    assume((low is not None or high is not None) and (low is None or high is None or low <= high))
    far_from([r for row in reference.ratios(case.old, case.rollout, case.mask, "token") for r in row], low, high)
    expected = reference.outlier_mask(case.old, case.rollout, case.mask, low, high)
    same_mask(Reject(level="sequence-every", low=low, high=high)(case.batch()), expected)


@pytest.mark.parametrize("per", ["token", "sequence"])
@QUICK
@given(case=drawn(), high=BOUND)
def test_normalize(per: str, case: Drawn, high: float | None) -> None:
    rule = Normalize.model_validate({"rule": Truncate(high=high), "per": per})
    ratios = reference.truncate(reference.ratios(case.old, case.rollout, case.mask, "token"), case.mask, None, high)
    same_weights(rule(case.batch()), reference.batch_normalized(ratios, case.mask, per))


@QUICK
@given(case=drawn(spread=1.0), threshold=st.floats(0.01, 1.0))
def test_m2po(case: Drawn, threshold: float) -> None:
    squares = [x * x for row in reference.log_ratios(case.old, case.rollout, case.mask, None) for x in row if x]
    assume(len(squares) == len(set(squares)))
    expected = reference.second_moment_mask(case.old, case.rollout, case.mask, threshold)
    for moved in (threshold + 1e-9, threshold - 1e-9):
        assume(expected == reference.second_moment_mask(case.old, case.rollout, case.mask, moved))
    same_mask(M2PO(threshold=threshold)(case.batch()), expected)


@QUICK
@given(st.lists(st.tuples(st.floats(-9.0, -0.1), st.floats(-9.0, -0.1), st.integers(-1, 12)), min_size=0, max_size=6))
def test_proximal(tokens: list[tuple[float, float, int]]) -> None:
    rollout, current, versions = ([token[i] for token in tokens] for i in range(3))
    expected = reference.interpolated_proximal([current], [rollout], [versions], 10)[0]  # type: ignore[list-item]
    found = proximal_log_probs(
        torch.tensor(rollout, dtype=torch.float64),
        torch.tensor(current, dtype=torch.float64),
        torch.tensor(versions, dtype=torch.long),
        version=10,
    )
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


# -- invariants ----------------------------------------------------------------------------------------------------

RULES = [
    Truncate(high=2.0),
    Truncate(high=2.0, low=0.5, level="sequence"),
    Truncate(high=2.0, level="geometric", only=Reject(level="sequence-max", high=1.5)),
    IcePop(),
    Reject(low=0.5, high=2.0),
    Reject(statistic="k1", level="sequence-sum", low=-0.5, high=0.5),
    Reject(statistic="k3", level="sequence-mean", high=0.5),
    Reject(level="sequence-every", low=0.2),
    Truncate(high=None) & Reject(statistic="k2", level="sequence-max", high=0.5),
]
STEP_RULES = [Normalize(rule=Truncate()), Normalize(rule=Truncate(level="sequence"), per="sequence"), M2PO()]


def equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    return first is second if first is None or second is None else torch.equal(first, second)


@pytest.mark.parametrize("rule", [*RULES, *STEP_RULES], ids=repr)
@QUICK
@given(case=drawn(), data=st.data())
def test_masked_values_do_not_matter(rule: Truncate, case: Drawn, data: st.DataObject) -> None:
    other = Drawn(*_other_garbage(case, data), case.mask)
    first, second = rule(case.batch(torch.float32)), rule(other.batch(torch.float32))
    assert equal(first.weights, second.weights)
    assert equal(first.mask, second.mask)
    assert first.metrics.compute() == second.metrics.compute()


def _other_garbage(case: Drawn, data: st.DataObject) -> tuple[list[list[float]], list[list[float]]]:
    garbage = st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e30, -3.0])

    def filled(rows: list[list[float]]) -> list[list[float]]:
        return [
            [x if keep else data.draw(garbage) for x, keep in zip(row, mask, strict=True)]
            for row, mask in zip(rows, case.mask, strict=True)
        ]

    return filled(case.old), filled(case.rollout)


@pytest.mark.parametrize("rule", [*RULES, *STEP_RULES], ids=repr)
@QUICK
@given(case=drawn(), data=st.data())
def test_the_order_of_samples_does_not_matter(rule: Truncate, case: Drawn, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.old))))
    batch = case.batch()
    shuffled = batch.select(order)
    first, second = rule(batch), rule(shuffled)
    for mine, theirs in ((first.weights, second.weights), (first.mask, second.mask)):
        if mine is None or theirs is None:
            assert mine is theirs
        else:
            rows = batch.layout.split(mine)
            torch.testing.assert_close(shuffled.layout.cat([rows[i] for i in order]).to(theirs.dtype), theirs)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@QUICK
@given(case=drawn())
def test_a_split_changes_nothing(rule: Truncate, case: Drawn) -> None:
    batch = case.batch()
    whole, parts = rule(batch), [rule(part) for part in batch.split(samples=1)]
    for name in ("weights", "mask"):
        if getattr(whole, name) is not None:
            assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts]))
    merged = parts[0].metrics
    for part in parts[1:]:
        merged = merged.merge(part.metrics)
    assert merged.compute() == pytest.approx(whole.metrics.compute(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rule", [*RULES, *STEP_RULES], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@QUICK
@given(case=drawn())
def test_weights_have_the_dtype_of_the_scores(rule: Truncate, dtype: torch.dtype, case: Drawn) -> None:
    weights = rule(case.batch(dtype)).weights
    assert weights is None or weights.dtype == dtype
