"""Faults of importance weights and mismatch metrics that users of other trainers reported in public."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.configuration import settings
from rollout_contract.corrections import Correction, IcePop, Reject, Truncate
from rollout_contract.errors import CorrectionError, DTypeError, MissingFieldError, NonFiniteError
from rollout_contract.kl import K2
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.policy import policy_loss
from rollout_contract.metrics import Metric
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import PPOClip, Reinforce, RolloutCISPO, RolloutReinforce
from rollout_contract.schemas import KLBatch, OffPolicyMaskBatch, PolicyBatch, RolloutPolicyBatch, TISBatch
from tests.corrections.batches import make, of_ratios


class Step(OffPolicyMaskBatch, RolloutPolicyBatch, KLBatch):
    """Everything that the losses here read."""


def step_of(old: list[float], rollout: list[float], advantage: float = 1.0) -> Step:
    """One sample, all of its tokens trained, float64."""
    return Step(
        response_lengths=[len(old)],
        loss_mask=[[True] * len(old)],
        old_log_probs=torch.tensor(old, dtype=torch.float64),
        rollout_log_probs=torch.tensor(rollout, dtype=torch.float64),
        ref_log_probs=torch.tensor(old, dtype=torch.float64),
        advantages=torch.full((len(old),), advantage, dtype=torch.float64),
    )


def live(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradient(leaf: Tensor) -> list[float]:
    assert leaf.grad is not None
    return leaf.grad.tolist()  # type: ignore[no-any-return]


def value(metrics_of: object, name: str) -> float:
    return metrics_of[name].compute()  # type: ignore[index, no-any-return]


UNCLIPPED = PPOClip(clip_low=1.0, clip_high=99.0)


# verl#4105: the weight of the bypass mode carried a gradient ----------------------------------------------------------


def test_case_002_a_weight_made_from_live_scores_has_no_gradient() -> None:
    log_probs, rollout = live(-1.0, -2.0), [-1.2, -1.5]
    step = step_of(rollout, rollout)
    ratio = (log_probs - torch.tensor(rollout, dtype=torch.float64)).exp()
    step = step.corrected(Correction(step, weights=ratio.clamp(max=2.0))).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), Reinforce()).backward()
    # Live it would be [0, +0.6065]: the first vanishes, the second has the wrong sign.
    assert gradient(log_probs) == pytest.approx([-1.2214, -0.6065], abs=1e-4)


def test_case_002_nor_has_the_objective_of_the_bypass_mode() -> None:
    log_probs, rollout = live(-1.0, -2.0), [-1.2, -1.5]
    step = step_of(rollout, rollout).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), RolloutReinforce(weight_max=2.0)).backward()
    assert gradient(log_probs) == pytest.approx([-1.2214, -0.6065], abs=1e-4)


# OpenRLHF#620, prime-rl#664, verl#6280, unsloth#4502: scores in half precision ----------------------------------------


def test_case_024_what_half_precision_has_cost_is_reported_and_not_clamped_away() -> None:
    exact = torch.tensor([-3.1416, -12.3456])
    fields = {"response_lengths": [2], "loss_mask": [[1, 1]], "old_log_probs": exact}
    with pytest.raises(DTypeError, match="rollout_log_probs"):
        TISBatch(**fields, rollout_log_probs=exact.bfloat16())
    with settings(half_precision="upcast"):
        batch = TISBatch(**fields, rollout_log_probs=exact.bfloat16())
    found = mismatch_metrics(batch)
    assert value(found, "abs_diff_max") == pytest.approx(0.0294, abs=1e-4)
    assert value(found, "ratio_max") == pytest.approx(1.0298, abs=1e-4)
    assert value(found, "ratio_min") == pytest.approx(0.99903, abs=1e-5)
    weights = Truncate()(batch).weights
    assert weights is not None
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx([0.99903, 1.0298], abs=1e-4)


def test_case_024_the_first_update_shows_how_far_policy_and_scores_are_apart() -> None:
    step = step_of([-1.0, -2.0], [-1.0, -2.0]).weighted("token-mean")
    found = policy_loss(step.bind(log_probs=live(-1.0, -2.03)), PPOClip()).metrics
    assert value(found, "log_ratio_min") == pytest.approx(-0.03)
    assert value(found, "log_ratio_max") == 0.0


# miles#1363, SkyRL#1261: exp overflows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [Truncate(high=None), Truncate(high=None, level="sequence"), IcePop(high=None)], ids=repr
)
def test_case_045_a_weight_never_overflows(rule: Truncate) -> None:
    # float32 overflows beyond a log-ratio of 88.72.
    batch = make([[-1.0, -1.0]], [[-101.0, -1.0]], dtype=torch.float32)
    correction = rule(batch)
    assert correction.weights is not None
    assert correction.weights[0] == pytest.approx(math.exp(20.0), rel=1e-6)
    prefix = "icepop" if isinstance(rule, IcePop) else "truncate"
    assert value(correction.metrics, f"{prefix}/ratio_max") == pytest.approx(math.exp(100.0), rel=1e-5)


def test_case_045_diagnostics_use_the_unclamped_value() -> None:
    found = mismatch_metrics(make([[-1.0, -1.0]], [[-101.0, -1.0]], dtype=torch.float32))
    assert value(found, "abs_diff_max") == 100.0
    assert value(found, "k1") == -50.0
    assert value(found, "k3") == pytest.approx(math.exp(100.0) / 2, rel=1e-5)


def test_case_045_nan_is_not_mapped_to_zero() -> None:
    with pytest.raises(NonFiniteError):
        make([[-1.0]], [[float("nan")]])
    batch = make([[-1.0, -1.0]], [[-1.0, -2.0]])
    with pytest.raises(NonFiniteError):
        Correction(batch, weights=torch.tensor([1.0, float("nan")]))


def test_case_045_what_the_bound_of_the_ratio_stops_is_counted() -> None:
    log_probs = live(-1.0, -31.0)
    step = step_of([-1.0, -1.0], [-1.0, -1.0]).weighted("token-mean")
    loss = policy_loss(step.bind(log_probs=log_probs), UNCLIPPED)
    loss.backward()
    assert value(loss.metrics, "log_ratio_bounded") == 0.5
    assert value(loss.metrics, "approx_kl") == 15.0
    assert gradient(log_probs) == pytest.approx([-0.5, 0.0])


# verl#3915, slime#657: rejection by weights of zero -------------------------------------------------------------------

RATIOS = [[math.exp(x) for x in (0.1, -1.5, 0.8, -10.0, 0.3)]]


def mean_weight(correction: Correction) -> float:
    """The loss of a token mean with term 1: the mean weight of what counts as a token."""
    old = [-10.0 + x for x in (0.1, -1.5, 0.8, -10.0, 0.3)]
    step = step_of(old, [-10.0] * 5, advantage=-1.0)
    mine = Correction(step, weights=correction.weights, mask=correction.mask)
    loss = policy_loss(step.corrected(mine).weighted("token-mean").bind(log_probs=live(*old)), UNCLIPPED)
    return value(loss.metrics, "policy_loss")


def test_case_058_rejected_tokens_leave_the_denominator() -> None:
    rule = Truncate(high=None) & Reject(low=0.5, high=2.0)
    correction = rule(of_ratios(RATIOS))
    assert mean_weight(correction) == pytest.approx(1.2275, abs=1e-4)
    assert correction.weights is not None
    assert bool((correction.weights > 0).all())


def test_case_058_icepop_is_defined_with_them_in_it() -> None:
    assert mean_weight(IcePop(low=0.5, high=2.0)(of_ratios(RATIOS))) == pytest.approx(0.491, abs=1e-4)


def test_case_058_weights_that_were_computed_before_are_computed_anew() -> None:
    step = step_of([-1.0, -1.0], [-1.0, -9.0])
    rejected = Reject(high=2.0)(step)
    before = step.weighted("token-mean").corrected(rejected)
    after = step.corrected(rejected).weighted("token-mean")
    assert before.loss_weights.tolist() == after.loss_weights.tolist() == [1.0, 0.0]
    part = make([[-1.0], [-1.0]], [[-1.0], [-9.0]]).weighted("token-mean").split(samples=1)[1]
    with pytest.raises(CorrectionError):
        part.corrected(Reject(high=2.0)(part))


# slime#179: the weight was made from the current policy ---------------------------------------------------------------


def test_case_062_the_weight_is_made_from_the_old_scores() -> None:
    log_probs = live(-1.0)
    step = step_of([-1.5], [-1.6])
    correction = Truncate(high=2.0)(step)
    assert correction.weights is not None
    assert correction.weights.item() == pytest.approx(1.1052, abs=1e-4)
    loss = policy_loss(step.corrected(correction).weighted("sum").bind(log_probs=log_probs), UNCLIPPED)
    loss.backward()
    # Not 3.0042, which counts the step of the policy twice.
    assert value(loss.metrics, "policy_loss") == pytest.approx(-1.8221, abs=1e-4)
    assert gradient(log_probs) == pytest.approx([-1.8221], abs=1e-4)


def test_case_062_the_current_policy_has_no_say() -> None:
    step = step_of([-1.5], [-1.6])
    bound = step.bind(log_probs=live(-1.0))
    for rule in (Truncate(), IcePop(), Truncate(level="sequence")):
        assert torch.equal(rule(step).weights, rule(bound).weights)  # type: ignore[arg-type]


def test_case_062_in_bypass_mode_the_weight_is_exactly_one() -> None:
    step = step_of([-1.6, -20.0], [-1.6, -20.0])
    for rule in (Truncate(), IcePop(), Truncate(level="sequence"), Truncate(level="geometric")):
        assert rule(step).weights.tolist() == [1.0, 1.0]  # type: ignore[union-attr]


# SkyRL#917, slime#942, slime#945, miles#82: the sampler's scores are missing ------------------------------------------


@pytest.mark.parametrize("absent", [{}, {"rollout_log_probs": None}, {"rollout_log_probs": []}], ids=str)
def test_case_065_missing_scores_are_named_where_they_are_needed(absent: dict[str, object]) -> None:
    fields = {"response_lengths": [1, 1], "loss_mask": [[1], [1]], "old_log_probs": [[-1.0], [-1.0]]}
    with pytest.raises(MissingFieldError) as caught:
        TISBatch(**fields, **absent)
    assert caught.value.field == "rollout_log_probs"


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_case_065_and_nobody_asks_for_them_elsewhere() -> None:
    batch = PolicyBatch(response_lengths=[1], loss_mask=[[1]], old_log_probs=[[-1.0]], advantages=[[1.0]]).weighted(
        "token-mean"
    )
    loss = policy_loss(batch.bind(log_probs=torch.tensor([-1.0], requires_grad=True)), PPOClip())
    assert value(loss.metrics, "policy_loss") == -1.0
    for reader in (Truncate(), Reject(high=2.0), mismatch_metrics):
        with pytest.raises(MissingFieldError, match="rollout_log_probs"):
            reader(batch)  # type: ignore[operator]


# Liger#1082, verl#3274, SkyRL#1070: the weights were silently ignored -------------------------------------------------


def test_case_067_a_correction_that_nobody_applied_is_an_error() -> None:
    step = step_of([-1.0], [-2.0])
    step = step.corrected(Truncate()(step)).weighted("sum").bind(log_probs=live(-1.0))
    with pytest.raises(CorrectionError, match="none in this sum"):
        kl_loss(step, K2()).backward()
    (policy_loss(step, PPOClip()) + 0.1 * kl_loss(step, K2())).backward()


def test_case_067_an_objective_that_cannot_apply_it_refuses() -> None:
    step = step_of([-1.0], [-2.0])
    step = step.corrected(Truncate()(step)).weighted("sum").bind(log_probs=live(-1.0))
    for objective in (RolloutCISPO(), RolloutReinforce()):
        with pytest.raises(CorrectionError):
            policy_loss(step, objective)


def test_case_067_a_correction_scales_the_gradient() -> None:
    log_probs = live(-1.0)
    step = step_of([-1.0], [-1.0])
    step = step.corrected(Correction(step, weights=torch.tensor([0.01]))).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    assert gradient(log_probs) == pytest.approx([-0.01])


# NeMo-RL#3900, slime#1174, SkyRL#912, slime#596, ms-swift#7145: mismatch metrics that hide the mismatch ---------------


def test_case_069_the_ratio_is_reported_before_truncation() -> None:
    batch = of_ratios([[0.6065, 12.1825, 0.8187]])
    correction = Truncate(high=5.0)(batch)
    assert value(correction.metrics, "truncate/ratio_mean") == pytest.approx(4.536, abs=1e-3)
    assert value(mismatch_metrics(batch), "ratio_mean") == pytest.approx(4.536, abs=1e-3)
    assert correction.weights is not None
    assert metrics.mean(correction.weights, batch.loss_mask).compute() == pytest.approx(2.142, abs=1e-3)


def test_case_069_a_perfect_match_has_difference_zero() -> None:
    found = mismatch_metrics(make([[-1.0, -2.0]], [[-1.0, -2.0]]))
    assert value(found, "abs_diff_mean") == value(found, "abs_diff_max") == value(found, "ratio_deviation") == 0.0
    # exp of the difference is the *factor* between the probabilities: 1 for a perfect match, and called so.
    assert value(found, "probability_error") == 1.0


def test_case_069_opposite_differences_do_not_cancel() -> None:
    found = mismatch_metrics(make([[-1.0, -2.0]], [[-2.0, -1.0]]))
    assert value(found, "k1") == 0.0
    assert value(found, "abs_diff_mean") == 1.0
    assert value(found, "k3") > 0.5


def test_case_069_masked_tokens_are_not_measured_and_no_graph_is_kept() -> None:
    mask = [[True, False]]
    batch = make([[-1.0, -9.0]], [[-1.5, float("nan")]], mask)
    found = mismatch_metrics(batch)
    assert value(found, "abs_diff_max") == 0.5
    assert all(isinstance(metric, Metric) and not metric.parts.requires_grad for metric in found.values())
    assert value(Truncate()(batch).metrics, "truncate/ratio_mean") == pytest.approx(math.exp(0.5))
