"""Aggregation weights and corrections equal the obvious implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given

from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import M2PO, Correction, IcePop, Normalize, Reject, Truncate, proximal_log_probs
from rollout_contract.schemas import TISBatch
from tests.properties.batches import Case, cases
from tests.properties.compare import FEW, assert_close, pack
from tests.properties.setups import build
from tests.reference import aggregation, corrections

Weights = list[list[float]]


def expected_weights(case: Case, mode: str, count_empty: bool) -> Weights:
    mask, groups, empty = case.mask, case.group_ids, {"count_empty": count_empty}
    samples = len(mask) if count_empty else max(sum(any(row) for row in mask), 1)
    of_mode: dict[str, Callable[[], Weights]] = {
        "token-mean": lambda: aggregation.token_mean(mask),
        "seq-mean-token-mean": lambda: aggregation.seq_mean_token_mean(mask, **empty),
        "seq-mean-token-sum": lambda: aggregation.seq_mean_token_sum(mask, **empty),
        "constant": lambda: aggregation.constant(mask, divisor=samples * 7.0),
        "prompt-mean": lambda: aggregation.prompt_mean(mask, groups, **empty),
        "group-mean-token-mean": lambda: aggregation.group_mean_token_mean(mask, groups, **empty),
        "sum": lambda: aggregation.token_sum(mask),
    }
    return of_mode[mode]()


MODES = list(Aggregation.model_fields["mode"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize("count_empty", [False, True])
@pytest.mark.parametrize("mode", MODES)
@given(case=cases())
@FEW
def test_aggregation(mode: str, count_empty: bool, case: Case) -> None:
    spec = Aggregation(mode=mode, count_empty=count_empty, constant=7.0 if mode == "constant" else None)
    found = build(TISBatch, case).weighted(spec).loss_weights
    assert_close(found, expected_weights(case, mode, count_empty), what=mode)


# -- corrections -------------------------------------------------------------------------------------------------------


def made(rule: Any, case: Case) -> Correction:
    found: Correction = rule(build(TISBatch, case))
    return found


def scores(case: Case) -> tuple[Weights, Weights, list[list[bool]]]:
    return case.tokens["old_log_probs"], case.tokens["rollout_log_probs"], case.mask


def assert_mask(correction: Correction, expected: list[list[bool]]) -> None:
    assert correction.weights is None
    assert correction.mask is not None
    assert correction.mask.tolist() == [keep for row in expected for keep in row]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(("low", "high", "bound"), [(None, 1.5, 20.0), (0.5, 2.0, 3.0), (None, None, 20.0)])
@given(case=cases())
@FEW
def test_truncate(level: str, low: float | None, high: float | None, bound: float | None, case: Case) -> None:
    rule = Truncate(low=low, high=high, level=level, log_ratio_bound=bound)
    ratios = corrections.ratios(*scores(case), level, bound)
    correction = made(rule, case)
    assert correction.mask is None
    assert_close(correction.weights, corrections.truncate(ratios, case.mask, low, high), what=repr(rule))


@given(case=cases())
@FEW
def test_icepop(case: Case) -> None:
    ratios = corrections.ratios(*scores(case), "token")
    assert_close(made(IcePop(low=0.7, high=1.4), case).weights, corrections.zero_outside(ratios, case.mask, 0.7, 1.4))


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("per", ["token", "sequence"])
@given(case=cases())
@FEW
def test_normalize(level: str, per: str, case: Case) -> None:
    rule = Normalize(rule=Truncate(high=1.5, level=level), per=per)
    truncated = corrections.truncate(corrections.ratios(*scores(case), level), case.mask, None, 1.5)
    assert_close(made(rule, case).weights, corrections.batch_normalized(truncated, case.mask, per), what=repr(rule))


RANGES = {
    "ratio": [(0.7, 1.4), (1e-4, None)],
    "k1": [(-0.3, 0.2), (None, 0.1)],
    "k2": [(None, 0.05)],
    "k3": [(None, 0.05)],
    "reverse_k3": [(None, 0.05)],
}


@pytest.mark.parametrize("level", ["token", "sequence-sum", "sequence-mean", "sequence-max"])
@pytest.mark.parametrize(("statistic", "low", "high"), [(s, *r) for s, ranges in RANGES.items() for r in ranges])
@given(case=cases())
@FEW
def test_reject(statistic: str, level: str, low: float | None, high: float | None, case: Case) -> None:
    rule = Reject(statistic=statistic, level=level, low=low, high=high)
    ratios = corrections.log_ratios(*scores(case))
    level = level.removeprefix("sequence-")
    assert_mask(made(rule, case), corrections.statistic_mask(ratios, case.mask, statistic, level, low, high))


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.8), (1e-4, None), (None, 5.0)])
@given(case=cases())
@FEW
def test_reject_a_sequence_for_any_token(low: float | None, high: float | None, case: Case) -> None:
    rule = Reject(level="sequence-every", low=low, high=high)
    assert_mask(made(rule, case), corrections.outlier_mask(*scores(case), low, high))


@pytest.mark.parametrize("threshold", [0.04, 1e-8, 100.0])
@given(case=cases())
@FEW
def test_m2po(threshold: float, case: Case) -> None:
    assert_mask(made(M2PO(threshold=threshold), case), corrections.second_moment_mask(*scores(case), threshold))


@given(case=cases())
@FEW
def test_combined_rules_see_the_same_batch(case: Case) -> None:
    rule = Truncate(high=1.5) & Reject(statistic="k3", level="sequence-mean", high=0.05) & Reject(low=0.5)
    ratios, xs = corrections.ratios(*scores(case), "token"), corrections.log_ratios(*scores(case))
    by_k3 = corrections.statistic_mask(xs, case.mask, "k3", "mean", None, 0.05)
    found = made(rule, case)
    assert_close(found.weights, corrections.truncate(ratios, case.mask, None, 1.5))
    expected = corrections.both(by_k3, corrections.inside(ratios, case.mask, 0.5, None))
    assert found.mask is not None
    assert found.mask.tolist() == [keep for row in expected for keep in row]


@given(case=cases(spreads=(0.0, 0.2, 2.0, 25.0)))
@FEW
def test_proximal_log_probs(case: Case) -> None:
    lengths = case.lengths
    versions = [[(3 * i + 2 * t) % 8 - 1 for t in range(length)] for i, length in enumerate(lengths)]
    packed = torch.tensor([v for row in versions for v in row], dtype=torch.long)
    given_scores = case.packed("rollout_log_probs"), case.packed("log_probs")
    found = proximal_log_probs(*given_scores, packed, version=5)
    rows = case.tokens["log_probs"], case.tokens["rollout_log_probs"]
    assert_close(found, pack(corrections.interpolated_proximal(*rows, versions, 5)))
