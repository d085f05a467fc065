"""References that no trainer's record covers, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.reference import advantages, aggregation, corrections, distillation, kl, score_objectives
from tests.reference import selective_objectives as selective
from tests.reference.scalars import gradients, leaves, numbers, row, rows, weighted_sum

BOTH = [[True, True]]
ONE_EACH = aggregation.token_sum(BOTH)


def test_topr_weighs_only_the_negative_response_by_its_sequence_ratio() -> None:
    live, behaviour = leaves([[-1.0, -2.0]]), rows([[-0.5, -2.0]])
    for sign, weight in ((1.0, 1.0), (-1.0, math.exp(-0.5))):
        losses = score_objectives.topr(live, behaviour, rows([[sign, sign]]), BOTH)
        assert gradients(weighted_sum(losses, ONE_EACH), live) == [pytest.approx([-sign * weight] * 2)]
    above = score_objectives.topr(live, rows([[-2.0, -2.0]]), rows([[-1.0, -1.0]]), BOTH)
    assert gradients(weighted_sum(above, ONE_EACH), live) == [pytest.approx([1.0, 1.0])]


def test_dro() -> None:
    live = leaves([[-1.0, -2.0]])
    losses = score_objectives.dro(live, rows([[-1.5, -2.0]]), rows([[2.0, 1.0]]), BOTH, beta=0.4)
    assert numbers(losses) == [pytest.approx([2.0 + 0.2 * 0.25, 2.0])]
    assert gradients(weighted_sum(losses, ONE_EACH), live) == [pytest.approx([-2.0 + 0.4 * 0.5, -1.0])]


def test_positive_nll_and_a_star_po() -> None:
    live, mask = leaves([[-1.0], [-2.0]]), [[True], [True]]
    assert numbers(score_objectives.positive_nll(live, [True, False], mask, weight=0.1)) == [
        [pytest.approx(0.1)],
        [0.0],
    ]
    value = score_objectives.optimal_value([1.0, 0.0], beta=0.5)
    assert value == pytest.approx(0.5 * math.log((math.exp(2.0) + 1.0) / 2))
    losses = score_objectives.a_star_po(live, rows([[-1.5], [-2.0]]), row([1.0, 0.0]), row([value] * 2), mask, beta=0.1)
    assert numbers(losses) == [[pytest.approx((0.1 * 0.5 - (1.0 - value)) ** 2)], [pytest.approx(value**2)]]


def test_top_entropy_mask_interpolates_the_quantile() -> None:
    entropies, mask = rows([[1.0, 9.0, 2.0], [3.0, 4.0]]), [[True, False, True], [True, True]]
    kept = selective.top_entropy_mask(entropies, mask, quantile=0.5)  # threshold 2.5
    assert kept == [[False, False, False], [True, True]]


def test_second_moment_mask_drops_the_largest_and_keeps_one() -> None:
    old, behaviour, mask = [[-1.0, -2.0, -3.0]], [[-1.1, -2.5, -5.0]], [[True, True, True]]
    assert corrections.second_moment_mask(old, behaviour, mask, 0.2) == [[True, True, False]]
    assert corrections.second_moment_mask(old, behaviour, mask, 1e-6) == [[True, False, False]]


def test_proximal_policy_between_versions() -> None:
    found = corrections.interpolated_proximal([[-1.0] * 4], [[-2.0] * 4], [[5, 3, -1, 4]], 5)
    assert found == [pytest.approx([-2.0, -1.5, -2.0, -2.0])]


def test_estimators_without_a_record() -> None:
    found, kept = advantages.role_moving_average([1.0, 0.0], ["a", "a"], {}, decay=0.5)
    assert (found, kept) == ([0.5, -0.25], {"a": 0.25})
    groups, components = [0, 0, 1, 1], [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 4.0, 0.0]]
    first, second = advantages.gdpo(components, groups, [1.0, 1.0])[:2]
    assert first == pytest.approx(-second)
    assert advantages.grpo([1.0, math.nan, 0.0], [0, 0, 0], std="none") == [0.5, 0.0, -0.5]
    assert advantages.grpo([0.7] * 7, [0] * 7) == [0.0] * 7


def test_iw_opd_and_ratio_weighted() -> None:
    live, behaviour, teacher = leaves([[-1.0, -2.0]]), rows([[-1.5, -2.5]]), rows([[-0.5, -2.0]])
    losses = distillation.iw_opd(live, behaviour, teacher, BOTH, gamma=0.5)
    assert numbers(losses) == [pytest.approx([1.5 * 1.0, 2.0 * (1 + 0.5 * (1 - 1 / 1.5)) * 0.5])]
    weighted = distillation.ratio_weighted(live, behaviour, teacher, BOTH, coef=2.0)
    assert numbers(weighted) == [pytest.approx([-2 * math.exp(0.5) * 0.5, 0.0])]


def test_adaptive_coefficient_is_clipped() -> None:
    assert kl.adaptive_coefficient(0.1, 6.0, 2.0, 100, 1000) == pytest.approx(0.1 * 1.02)
