"""Every built-in correction against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from rollout_contract.corrections import (
    M2PO,
    Combined,
    Correction,
    IcePop,
    Normalize,
    Reject,
    Truncate,
    proximal_log_probs,
)
from rollout_contract.errors import ContractError, MissingFieldError, MutatedError, ShapeError
from rollout_contract.schemas import PolicyBatch, TISBatch
from tests.corrections.batches import make, of_ratios

# Two sequences; the third token of the first is masked. Ratios 2, 0.5, (8) and 4, 1.
RATIOS = [[2.0, 0.5, 8.0], [4.0, 1.0]]
MASK = [[True, True, False], [True, True]]


@pytest.fixture
def batch() -> TISBatch:
    return of_ratios(RATIOS, MASK)


def weights_of(correction: Correction) -> list[float]:
    assert correction.weights is not None
    return pytest.approx(correction.weights.tolist(), rel=1e-12)  # type: ignore[no-any-return]


def kept(correction: Correction) -> list[bool]:
    assert correction.mask is not None
    return correction.mask.tolist()  # type: ignore[no-any-return]


def numbers(correction: Correction, prefix: str) -> dict[str, float]:
    found = correction.metrics.compute()
    return {name.removeprefix(f"{prefix}/"): value for name, value in found.items() if name.startswith(f"{prefix}/")}


# -- truncation ----------------------------------------------------------------------------------------------------


def test_truncate_per_token(batch: TISBatch) -> None:
    assert weights_of(Truncate(high=1.5)(batch)) == [1.5, 0.5, 0.0, 1.5, 1.0]
    assert weights_of(Truncate(high=1.5, low=0.8)(batch)) == [1.5, 0.8, 0.0, 1.5, 1.0]
    assert weights_of(Truncate(high=None, low=0.8)(batch)) == [2.0, 0.8, 0.0, 4.0, 1.0]
    assert weights_of(Truncate(high=None)(batch)) == [2.0, 0.5, 0.0, 4.0, 1.0]
    assert Truncate()(batch).mask is None


def test_truncate_per_sequence(batch: TISBatch) -> None:
    # Products 2 x 0.5 = 1 and 4 x 1 = 4; geometric means 1 and 2.
    assert weights_of(Truncate(high=3.0, level="sequence")(batch)) == [1.0, 1.0, 0.0, 3.0, 3.0]
    assert weights_of(Truncate(high=1.5, level="geometric")(batch)) == [1.0, 1.0, 0.0, 1.5, 1.5]
    assert weights_of(Truncate(high=None, level="geometric")(batch)) == [1.0, 1.0, 0.0, 2.0, 2.0]


def test_truncate_metrics_are_those_of_the_ratio_before_any_bound(batch: TISBatch) -> None:
    found = numbers(Truncate(high=1.5, low=0.8)(batch), "truncate")
    # Ratios 2, 0.5, 4, 1: mean 7.5 / 4, squares 4 + 0.25 + 16 + 1 = 21.25.
    assert found == pytest.approx(
        {
            "ratio_mean": 1.875,
            "ratio_min": 0.5,
            "ratio_max": 4.0,
            "ratio_std": math.sqrt(21.25 / 4 - 1.875**2),
            "ratio_deviation": (1 + 0.5 + 3 + 0) / 4,
            "ess": 7.5**2 / (4 * 21.25),
            "fraction_high": 0.5,
            "fraction_low": 0.25,
        }
    )


def test_truncate_metrics_of_sequences(batch: TISBatch) -> None:
    found = numbers(Truncate(high=3.0, level="sequence")(batch), "truncate")
    assert (found["ratio_mean"], found["ratio_max"], found["fraction_high"]) == pytest.approx((2.5, 4.0, 0.5))


def test_the_log_ratio_is_bounded_before_exp() -> None:
    batch = make([[-1.0, -100.0]], [[-51.0, -1.0]], dtype=torch.float32)
    bounded = Truncate(high=None)(batch)
    assert bounded.weights is not None
    assert bounded.weights.tolist() == pytest.approx([math.exp(20), math.exp(-20)], rel=1e-5)
    assert bounded.metrics.compute()["truncate/ratio_max"] == pytest.approx(math.exp(50), rel=1e-6)
    unbounded = Truncate(high=None, log_ratio_bound=None)(batch)
    assert unbounded.weights is not None
    assert unbounded.weights.tolist() == pytest.approx([math.exp(50), math.exp(-99)], rel=1e-4)


def test_the_sum_over_a_sequence_is_bounded_not_its_parts() -> None:
    batch = make([[-1.0, -31.0]], [[-31.0, -1.0]])
    assert weights_of(Truncate(high=None, level="sequence")(batch)) == [1.0, 1.0]


def test_truncate_only_where_a_rule_would_reject(batch: TISBatch) -> None:
    outliers = Reject(statistic="ratio", level="sequence-mean", high=1.5)
    # Geometric means 1 and 2: the first sequence is left as it is, although 2 lies above the bound.
    assert weights_of(Truncate(high=1.5, only=outliers)(batch)) == [2.0, 0.5, 0.0, 1.5, 1.0]


# -- IcePop --------------------------------------------------------------------------------------------------------


def test_icepop_zeroes_weights_and_keeps_the_mask(batch: TISBatch) -> None:
    correction = IcePop(low=0.4, high=2.5)(batch)
    assert weights_of(correction) == [2.0, 0.5, 0.0, 0.0, 1.0]
    assert correction.mask is None
    found = numbers(correction, "icepop")
    assert (found["ratio_mean"], found["fraction_high"], found["fraction_low"]) == pytest.approx((1.875, 0.25, 0.0))


def test_icepop_keeps_its_bounds() -> None:
    batch = make([[-1.0, -1.0]], [[-1.0, -1.0]])
    assert weights_of(IcePop(low=1.0, high=1.0)(batch)) == [1.0, 1.0]


# -- rejection -----------------------------------------------------------------------------------------------------


def test_reject_tokens_by_ratio(batch: TISBatch) -> None:
    correction = Reject(low=0.6, high=2.5)(batch)
    assert kept(correction) == [True, False, False, False, True]
    assert correction.weights is None
    assert numbers(correction, "reject/ratio/token") == pytest.approx(
        {"mean": 1.875, "min": 0.5, "max": 4.0, "rejected": 0.5, "high": 0.25, "low": 0.25, "tokens_rejected": 0.5}
    )


@pytest.mark.parametrize(
    ("statistic", "per_token"),
    [
        # x = log 2, -log 2, log 4, 0.
        ("k1", [-math.log(2), math.log(2), -math.log(4), 0.0]),
        ("k2", [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2, math.log(4) ** 2 / 2, 0.0]),
        ("k3", [1 - math.log(2), -0.5 + math.log(2), 3 - math.log(4), 0.0]),
        ("reverse_k3", [-0.5 + math.log(2), 1 - math.log(2), -0.75 + math.log(4), 0.0]),
    ],
)
def test_reject_by_a_divergence(batch: TISBatch, statistic: str, per_token: list[float]) -> None:
    first, second, third, fourth = per_token

    def verdict(level: str, **bounds: float) -> list[bool]:
        rule = Reject.model_validate({"statistic": statistic, "level": level, **bounds})
        return kept(rule(batch))

    def expected(first: bool, second: bool) -> list[bool]:
        return [first, first, False, second, second]

    high = (max(per_token[:2]) + 1e-6) if statistic == "k1" else 0.4
    assert verdict("token", high=high) == [first <= high, second <= high, False, third <= high, fourth <= high]
    sums, means, largest = (
        (first + second, third + fourth),
        ((first + second) / 2, third / 2),
        (max(first, second), max(third, fourth)),
    )
    for level, values in (("sequence-sum", sums), ("sequence-mean", means), ("sequence-max", largest)):
        between = sum(values) / 2
        assert verdict(level, high=between) == expected(values[0] <= between, values[1] <= between)
        assert verdict(level, low=between) == expected(values[0] >= between, values[1] >= between)


def test_a_ratio_over_a_sequence_is_a_product_or_a_geometric_mean(batch: TISBatch) -> None:
    assert kept(Reject(level="sequence-sum", high=3.9)(batch)) == [True, True, False, False, False]
    assert kept(Reject(level="sequence-sum", high=4.1)(batch)) == [True, True, False, True, True]
    assert kept(Reject(level="sequence-mean", high=1.9)(batch)) == [True, True, False, False, False]
    assert kept(Reject(level="sequence-mean", low=1.5)(batch)) == [False, False, False, True, True]
    assert kept(Reject(level="sequence-max", high=3.0)(batch)) == [True, True, False, False, False]


def test_a_veto_kills_the_sequence(batch: TISBatch) -> None:
    correction = Reject(level="sequence-every", low=0.6)(batch)
    assert kept(correction) == [False, False, False, True, True]
    found = numbers(correction, "reject/ratio/sequence-every")
    assert (found["rejected"], found["low"], found["high"], found["tokens_rejected"]) == (0.5, 0.5, 0.0, 0.5)


def test_a_masked_outlier_rejects_nothing(batch: TISBatch) -> None:
    assert kept(Reject(level="sequence-every", high=5.0)(batch)) == [True, True, False, True, True]
    assert kept(Reject(level="sequence-max", high=5.0)(batch)) == [True, True, False, True, True]


# -- combinations --------------------------------------------------------------------------------------------------


def test_masked_importance_sampling(batch: TISBatch) -> None:
    rule = Truncate(high=None) & Reject(low=0.6, high=2.5)
    assert isinstance(rule, Combined)
    correction = rule(batch)
    # A rejected token keeps its raw weight: rejection is the mask's business.
    assert weights_of(correction) == [2.0, 0.5, 0.0, 4.0, 1.0]
    assert kept(correction) == [True, False, False, False, True]


def test_the_order_of_rules_does_not_matter(batch: TISBatch) -> None:
    rules = (Truncate(level="sequence"), Reject(high=2.5), Reject(statistic="k3", level="sequence-mean", high=0.8))
    forwards, backwards = Combined(rules=rules)(batch), Combined(rules=rules[::-1])(batch)
    assert weights_of(backwards) == forwards.weights.tolist()  # type: ignore[union-attr]
    assert kept(forwards) == kept(backwards)
    assert forwards.metrics.compute() == backwards.metrics.compute()


def test_rules_combine_with_any_callable(batch: TISBatch) -> None:
    def half(batch: TISBatch) -> Correction:
        return Correction(batch, weights=torch.full((5,), 0.5))

    assert weights_of((Truncate() & half)(batch)) == [1.0, 0.25, 0.0, 1.0, 0.5]


# -- normalisation -------------------------------------------------------------------------------------------------


def test_normalise_over_tokens_and_over_sequences(batch: TISBatch) -> None:
    # Mean over tokens 7.5 / 4; over the means 1.25 and 2.5 of the sequences 1.875 as well: take unequal lengths.
    assert weights_of(Normalize(rule=Truncate(high=None))(batch)) == [w / 1.875 for w in (2.0, 0.5, 0.0, 4.0, 1.0)]
    ragged = of_ratios([[2.0, 2.0, 2.0], [1.0], [1.0]], [[True] * 3, [True], [False]])
    assert weights_of(Normalize(rule=Truncate(high=None))(ragged)) == [w / 1.75 for w in (2.0, 2.0, 2.0, 1.0, 0.0)]
    by_sequence = Normalize(rule=Truncate(high=None), per="sequence")(ragged)
    assert weights_of(by_sequence) == [w / 1.5 for w in (2.0, 2.0, 2.0, 1.0, 0.0)]


def test_normalise_after_truncation_over_the_original_mask(batch: TISBatch) -> None:
    correction = Normalize(rule=Truncate(high=1.0) & Reject(high=2.5))(batch)
    assert weights_of(correction) == [w / 0.875 for w in (1.0, 0.5, 0.0, 1.0, 1.0)]
    assert kept(correction) == [True, True, False, False, True]
    assert correction.metrics.compute()["truncate/ratio_mean"] == pytest.approx(1.875)


def test_normalise_what_has_no_weights(batch: TISBatch) -> None:
    with pytest.raises(MissingFieldError, match="a correction with weights"):
        Normalize(rule=Reject(high=2.0))(batch)


def test_weights_that_are_all_zero_stay_zero(batch: TISBatch) -> None:
    assert weights_of(Normalize(rule=IcePop(low=10.0, high=11.0))(batch)) == [0.0] * 5


# -- M2PO ----------------------------------------------------------------------------------------------------------


def test_m2po_drops_the_largest_second_moments(batch: TISBatch) -> None:
    # Squares of x: l, l, 4 l, 0 with l = log(2)^2 = 0.48: means of the smallest 1, 2 (with its tie 3), 4 of them
    # are 0, 0.32 (of three), 0.72.
    square = math.log(2) ** 2
    assert kept(M2PO(threshold=2 * square)(batch)) == [True, True, False, True, True]
    correction = M2PO(threshold=square)(batch)
    assert kept(correction) == [True, True, False, False, True]
    assert numbers(correction, "m2po") == pytest.approx({"second_moment": 1.5 * square, "rejected": 0.25})
    assert kept(M2PO(threshold=0.6 * square)(batch)) == [False, False, False, False, True]


def test_m2po_keeps_at_least_one_token() -> None:
    assert kept(M2PO(threshold=0.01)(of_ratios([[4.0, 2.0]]))) == [False, True]
    # Equal ones stay together.
    assert kept(M2PO(threshold=0.01)(make([[-1.0, -1.0]], [[-2.0, -2.0]]))) == [True, True]
    assert kept(M2PO()(of_ratios([[4.0]], [[False]]))) == [False]


# -- proximal policy -----------------------------------------------------------------------------------------------


def test_proximal_policy_by_versions() -> None:
    rollout, current = torch.tensor([-1.0] * 5), torch.tensor([-2.0] * 5, requires_grad=True)
    versions = torch.tensor([6, 8, 9, 10, -1])
    # version 10: 4 behind -> 3/4 of the way, 2 behind -> 1/2, 1 behind -> 0, as current, unversioned -> 0.
    found = proximal_log_probs(rollout, current, versions, version=10)
    assert found.tolist() == pytest.approx([-1.75, -1.5, -1.0, -1.0, -1.0])
    assert not found.requires_grad


def test_proximal_policy_in_probability() -> None:
    rollout, current = torch.tensor([-1.0, -1.0], dtype=torch.float64), torch.tensor([-2.0, float("nan")])
    found = proximal_log_probs(rollout, current, torch.tensor([8, 9]), version=10, blend="linear")
    assert found.tolist() == pytest.approx([math.log(0.5 * math.exp(-1) + 0.5 * math.exp(-2)), -1.0])


def test_proximal_policy_of_the_wrong_shape() -> None:
    with pytest.raises(ShapeError, match=r"versions \[shape\]"):
        proximal_log_probs(torch.zeros(3), torch.zeros(3), torch.zeros(1, dtype=torch.long), version=1)


# -- bypass, wrong batches, wrong configurations -------------------------------------------------------------------


def test_in_bypass_mode_every_weight_is_one() -> None:
    scores = torch.tensor([-1.0, -30.0, -0.1])
    batch = TISBatch(response_lengths=[3], loss_mask=[[1, 1, 1]], old_log_probs=scores, rollout_log_probs=scores)
    for rule in (Truncate(), Truncate(level="sequence"), IcePop()):
        assert rule(batch).weights.tolist() == [1.0, 1.0, 1.0]  # type: ignore[union-attr]


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_a_batch_without_scores_of_the_sampler() -> None:
    batch = PolicyBatch(response_lengths=[1], loss_mask=[[1]], old_log_probs=[[-1.0]], advantages=[[1.0]])
    for rule in (Truncate(), IcePop(), Reject(high=2.0), M2PO()):
        with pytest.raises(MissingFieldError, match="rollout_log_probs"):
            rule(batch)  # type: ignore[operator]


def test_a_batch_that_was_edited() -> None:
    batch = of_ratios(RATIOS, MASK)
    batch.rollout_log_probs.add_(1.0)
    with pytest.raises(MutatedError):
        Truncate()(batch)
    with pytest.raises(ContractError):
        Reject(high=2.0)(batch)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Truncate, {"high": 1.0, "low": 2.0}),
        (Truncate, {"high": -1.0}),
        (Truncate, {"low": -1.0}),
        (Truncate, {"high": float("nan")}),
        (Truncate, {"level": "tokens"}),
        (Truncate, {"cap": 2.0}),
        (Truncate, {"high": float("inf")}),
        (Reject, {"high": float("nan")}),
        (IcePop, {"low": 3.0, "high": 2.0}),
        (Reject, {}),
        (Reject, {"low": 2.0, "high": 1.0}),
        (Reject, {"statistic": "k2", "high": -0.1}),
        (Reject, {"statistic": "k4", "high": 1.0}),
        (M2PO, {"threshold": 0.0}),
    ],
)
def test_contradictory_options_are_refused(rule: type[Truncate], options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        rule.model_validate(options)


def test_configurations_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Truncate().high = 3.0  # type: ignore[misc]


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_normalise_over_all_ranks(batch: TISBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_the_other_rank(sums: torch.Tensor, group: object) -> None:
        assert group == "ranks"
        sums += torch.tensor([0.5, 6.0], dtype=sums.dtype)

    monkeypatch.setattr(torch.distributed, "all_reduce", add_the_other_rank)
    correction = Normalize(rule=Truncate(high=None))(batch, group="ranks")  # type: ignore[arg-type]
    # Here 7.5 over 4 tokens, there 0.5 over 6: the mean is 0.8.
    assert weights_of(correction) == [w / 0.8 for w in (2.0, 0.5, 0.0, 4.0, 1.0)]
