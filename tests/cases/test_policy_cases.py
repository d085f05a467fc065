"""Faults of policy losses that users of other trainers reported in public, with the numbers of the reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import KLBatch, PolicyBatch, RolloutBatch, Sampling, TISBatch, policy_loss, settings
from rollout_contract.corrections import Correction, Truncate
from rollout_contract.errors import (
    CorrectionError,
    LiveGraphError,
    MetadataError,
    MissingFieldError,
    NonFiniteError,
    ShapeError,
)
from rollout_contract.objectives import (
    CISPO,
    GMPO,
    GSPO,
    OBJECTIVES,
    OPSM,
    SAPO,
    ImportanceSampling,
    PPOClip,
    ProximalOPSM,
    RolloutCISPO,
    RolloutReinforce,
)
from rollout_contract.schemas import AdvantageBatch, OffPolicyMaskBatch
from tests.objectives.batches import make_step


class Step(PolicyBatch, TISBatch):
    """Both kinds of scores and advantages."""


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_sample(advantages: list[float], mask: list[int] | None = None, **scores: list[float]) -> Any:
    """One sample, weighted by a plain sum."""
    schema = Step if "rollout_log_probs" in scores else PolicyBatch
    fields = {name: double(*values) for name, values in scores.items()}
    loss_mask = torch.tensor([1] * len(advantages) if mask is None else mask)
    step = schema(response_lengths=[len(advantages)], loss_mask=loss_mask, advantages=double(*advantages), **fields)
    return step.weighted("sum")


# -- 4: the old scores are the live ones (trl#2769, mlx-lm-lora#49) ----------------------------------------------------


def test_case_004_live_old_scores_are_cut() -> None:
    log_probs = leaf(-1.0, -2.0)
    step = PolicyBatch(
        response_lengths=[2], loss_mask=[[1, 1]], old_log_probs=log_probs * 1.0, advantages=[[1.0, 1.0]]
    ).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, -1.0]


def test_case_004_or_refused_so_that_the_producer_is_found() -> None:
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match="old_log_probs"):
        PolicyBatch(response_lengths=[1], loss_mask=[[1]], old_log_probs=leaf(-1.0) * 1.0, advantages=[[1.0]])


def test_case_004_detached_scores_of_this_step_are_legal() -> None:
    log_probs = leaf(-1.0, -2.0)
    step = one_sample([1.0, 1.0], old_log_probs=[-1.0, -2.0])
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, -1.0]


# -- 11: advantages per sample, multiplied as if they were per token (trl 4db63af98) -----------------------------------


def test_case_011_advantages_per_sample_are_refused() -> None:
    fields = {"response_lengths": [2, 2], "loss_mask": torch.ones(4, dtype=torch.bool), "old_log_probs": torch.zeros(4)}
    with pytest.raises(ShapeError, match="advantages"):
        PolicyBatch(**fields, advantages=torch.tensor([1.0, -1.0]))


def test_case_011_expanded_ones_give_each_sample_its_own_sign() -> None:
    log_probs = leaf(0.0, 0.0, 0.0, 0.0)
    scored = RolloutBatch(response_lengths=[2, 2], loss_mask=torch.ones(4, dtype=torch.bool))
    step = scored.extend(
        PolicyBatch,
        old_log_probs=torch.zeros(4, dtype=torch.float64),
        advantages=scored.layout.expand(double(1.0, -1.0)),
    ).weighted("token-mean")
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-0.25, -0.25, 0.25, 0.25]


# -- 15: sequence ratios that see masked tokens, or other samples (EasyR1#595, Soup#723) -------------------------------


@pytest.mark.parametrize("objective", [GSPO(), SAPO(level="sequence"), GMPO()], ids=lambda o: o.name)
@pytest.mark.parametrize("masked", [-2.0, -6.0])
def test_case_015_a_masked_token_moves_nothing(objective: Any, masked: float) -> None:
    step = PolicyBatch(
        response_lengths=[3, 2],
        loss_mask=[[1, 1, 0], [1, 1]],
        old_log_probs=torch.full((5,), -1.0, dtype=torch.float64),
        advantages=double(1.0, 1.0, 1.0, -1.0, -1.0),
    ).weighted("seq-mean-token-mean")
    log_probs = leaf(-1.0, -1.0, -1.0 + masked, -1.0, -1.0)
    loss = policy_loss(step.bind(log_probs=log_probs), objective)
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad[2] == 0.0
    assert loss.value.item() == pytest.approx(0.0 if objective.name != "sapo" else -0.5 * (2.0 - 2.0 / 1.05))


def test_case_015_the_sequence_ratio_is_the_one_of_the_paper() -> None:
    """s_i = exp(masked mean); loss = -mean_i min(s_i A_i, clip(s_i) A_i); other samples stay out of it."""
    old, current = [[-1.0, -2.0], [-1.0]], [[-0.8, -2.1], [-1.3]]
    step = PolicyBatch(
        response_lengths=[2, 1], loss_mask=[[1, 1], [1]], old_log_probs=old, advantages=[[2.0, 2.0], [-1.0]]
    ).weighted("seq-mean-token-mean")
    log_probs = leaf(*current[0], *current[1])
    loss = policy_loss(step.bind(log_probs=log_probs), GSPO(clip_low=0.1, clip_high=0.2))
    first, second = math.exp(0.05), math.exp(-0.3)
    assert loss.value.item() == pytest.approx(-(2 * first - max(second, 0.9)) / 2, rel=1e-6)


# -- 41, 42: what sits at a masked token (OpenRLHF#1240, NeMo-RL#4120) -------------------------------------------------


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.reads is PolicyBatch])
@pytest.mark.parametrize("garbage", [(0.0, -200.0), (0.0, float("nan")), (float("-inf"), float("-inf"))], ids=str)
def test_case_042_the_gradient_at_a_masked_token_is_zero(name: str, garbage: tuple[float, float]) -> None:
    log_probs = leaf(0.0, garbage[0])
    step = one_sample([1.0, 1.0], mask=[1, 0], old_log_probs=[0.0, garbage[1]])
    loss = policy_loss(step.bind(log_probs=log_probs), OBJECTIVES[name]())
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad[0].isfinite()
    assert log_probs.grad[1] == 0.0
    assert loss.value.isfinite()


def test_case_041_the_numbers_of_the_report() -> None:
    log_probs = leaf(0.0, 0.0)
    step = one_sample([1.0, 1.0], mask=[1, 0], old_log_probs=[0.0, float("nan")])
    loss = policy_loss(step.bind(log_probs=log_probs), PPOClip())
    loss.backward()
    assert log_probs.grad is not None
    assert loss.value == -1.0
    assert log_probs.grad.tolist() == [-1.0, 0.0]


def test_case_041_on_a_trained_token_it_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="old_log_probs"):
        one_sample([1.0, 1.0], old_log_probs=[0.0, float("nan")])


# -- 45: overflow of the ratio (miles#1363, OpenRLHF, SkyRL#1261) ------------------------------------------------------


@pytest.mark.parametrize("bound", [20.0, None])
def test_case_045_the_ratio_of_float32_does_not_overflow(bound: float | None) -> None:
    """exp overflows float32 beyond 88.72; with an advantage of 0 an infinite ratio would make the loss NaN."""
    step = PolicyBatch(
        response_lengths=[3],
        loss_mask=[[1, 1, 1]],
        old_log_probs=[[-100.0, -100.0, -1.0]],
        advantages=[[0.0, -1.0, 1.0]],
    ).weighted("sum")
    log_probs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    loss = policy_loss(step.bind(log_probs=log_probs), ImportanceSampling(log_ratio_bound=bound))
    loss.backward()
    assert log_probs.grad is not None
    assert loss.value.isfinite()
    assert log_probs.grad.tolist() == [0.0, 0.0, -1.0]


def test_case_045_metrics_see_the_ratio_before_the_bound_and_count_it() -> None:
    step = one_sample([1.0, 1.0], old_log_probs=[-31.0, -1.0])
    found = policy_loss(step.bind(log_probs=leaf(-1.0, -1.0)), PPOClip()).metrics.compute()
    assert found["log_ratio_max"] == 30.0
    assert found["approx_kl"] == -15.0
    assert found["log_ratio_bounded"] == 0.5


# -- 50: finite garbage at masked tokens (AReaL#1346) ------------------------------------------------------------------


def test_case_050_the_mean_advantage_of_a_sample_is_over_its_trained_tokens() -> None:
    step = one_sample([1.0, 1.0, 10.0, 10.0], mask=[1, 1, 0, 0], old_log_probs=[-1.0] * 4)
    loss = policy_loss(step.bind(log_probs=leaf(-1.0, -1.0, -1.0, -1.0)), GSPO(average_advantages=True))
    assert loss.value == -2.0


# -- 62, 64, 65, 67: importance weights, and who uses them -------------------------------------------------------------


def test_case_062_ratio_and_weight_count_each_step_once() -> None:
    log_probs = leaf(-1.0)
    step = one_sample([1.0], old_log_probs=[-1.5], rollout_log_probs=[-1.6])
    step = step.corrected(Truncate(high=2.0)(step))
    assert step.correction_weights.item() == pytest.approx(1.1052, abs=1e-4)
    loss = policy_loss(step.bind(log_probs=log_probs), ImportanceSampling())
    assert loss.value.item() == pytest.approx(-1.8221, abs=1e-4)
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(-1.8221, abs=1e-4)


def test_case_064_scores_at_different_temperatures_do_not_make_a_ratio() -> None:
    processed, raw = Sampling(temperature=0.6), Sampling(temperature=0.6, log_probs="raw")
    with pytest.raises(MetadataError, match="old_log_probs"):
        one_sample([1.0], old_log_probs=[-0.2026]).bind(
            log_probs=leaf(-0.4076), sampling={"old_log_probs": processed, "log_probs": raw}
        )


def test_case_065_a_missing_field_is_named_by_the_objective_that_reads_it() -> None:
    step = one_sample([1.0], old_log_probs=[-1.0]).bind(log_probs=leaf(-1.0))
    policy_loss(step, CISPO())
    with pytest.raises(MissingFieldError, match="rollout_log_probs"):
        policy_loss(step, RolloutCISPO())
    with pytest.raises(MissingFieldError, match="rollout_log_probs"):
        policy_loss(step, ProximalOPSM(objective=RolloutReinforce()))


def test_case_065_a_reference_is_nothing_that_a_policy_loss_asks_for() -> None:
    batch = KLBatch(response_lengths=[1], loss_mask=[[1]], ref_log_probs=[[-1.0]]).weighted("sum")
    with pytest.raises(MissingFieldError, match=r"lacks (old_log_probs, advantages|advantages, old_log_probs)"):
        policy_loss(batch.bind(log_probs=leaf(-1.0).float()), PPOClip())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_case_067_no_objective_drops_a_weight_silently(name: str) -> None:
    """Every one multiplies by it, uses it inside, refuses it, or leaves the sum without a consumer."""
    objective = OBJECTIVES[name]()
    step = make_step(objective.reads, 3)
    weights = torch.rand(step.layout.num_tokens, dtype=torch.float64) + 0.5
    corrected = step.corrected(Correction(step, weights=weights))
    torch.manual_seed(0)
    log_probs = (-torch.rand(step.layout.num_tokens, dtype=torch.float64)).requires_grad_()
    extra = {"observed_entropy": -log_probs.detach()} if "observed_entropy" in type(step).__plan__ else {}
    if objective.correction == "refuses":
        with pytest.raises(CorrectionError, match="its own importance weight"):
            policy_loss(corrected.bind(log_probs=log_probs, **extra), objective)
        return
    torch.manual_seed(1)
    with_weights = policy_loss(corrected.bind(log_probs=log_probs, **extra), objective)
    torch.manual_seed(1)
    without = policy_loss(step.bind(log_probs=log_probs, **extra), objective)
    if objective.correction == "ignores":
        assert with_weights.value == without.value
        with pytest.raises(CorrectionError, match="a loss that applies them"):
            with_weights.backward()
        return
    assert with_weights.value != without.value
    with_weights.backward()


# -- 68: off-policy sequence masking (trl#4857) ------------------------------------------------------------------------


def off_policy_step() -> Any:
    """Two bad samples and a good one. The trainer has not moved since it scored them; the sampler differs on two."""
    return OffPolicyMaskBatch(
        response_lengths=[1, 1, 1],
        loss_mask=[[1], [1], [1]],
        old_log_probs=[[-1.0], [-1.0], [-1.0]],
        rollout_log_probs=[[-0.5], [-1.0], [-0.5]],
        advantages=[[-1.0], [-1.0], [1.0]],
    ).weighted("token-mean")


def test_case_068_the_divergence_is_measured_from_the_sampler() -> None:
    log_probs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    step = off_policy_step().bind(log_probs=log_probs)
    loss = policy_loss(step, OPSM(delta=0.2))
    loss.backward()
    assert log_probs.grad is not None
    # The first sample is bad and 0.5 nats away. It leaves the numerator; the denominator stays 3.
    assert log_probs.grad.tolist() == pytest.approx([0.0, 1 / 3, -1 / 3])
    assert loss.metrics.compute()["opsm_dropped_fraction"] == pytest.approx(1 / 3)


def test_case_068_the_old_scores_cannot_see_it() -> None:
    log_probs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    policy_loss(off_policy_step().bind(log_probs=log_probs), ProximalOPSM(delta=0.2)).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([1 / 3, 1 / 3, -1 / 3])


def test_case_068_it_needs_the_scores_of_the_sampler() -> None:
    step = one_sample([1.0], old_log_probs=[-1.0]).bind(log_probs=leaf(-1.0))
    with pytest.raises(MissingFieldError, match="rollout_log_probs"):
        policy_loss(step, OPSM())


# -- 69: metrics after truncation (NeMo-RL#3900) -----------------------------------------------------------------------


def test_case_069_metrics_are_of_the_ratio_before_it_is_clipped() -> None:
    rollout = [-1.0, -4.0, -1.0]
    batch = (
        OBJECTIVES["cispo_rollout"]
        .reads(response_lengths=[3], loss_mask=[[1, 1, 1]], rollout_log_probs=[rollout], advantages=[[1.0, 1.0, 1.0]])
        .weighted("token-mean")
    )
    log_probs = torch.tensor([-1.5, -1.5, -1.2], requires_grad=True)
    found = policy_loss(batch.bind(log_probs=log_probs), RolloutCISPO(ratio_max=2.0)).metrics.compute()
    assert found["log_ratio_max"] == pytest.approx(2.5)
    assert found["approx_kl"] == pytest.approx(-(2.5 - 0.5 - 0.2) / 3)
    assert found["clip_fraction_high"] == pytest.approx(1 / 3)


def test_case_069_a_perfect_match_reads_as_zero() -> None:
    step = one_sample([1.0, -1.0], old_log_probs=[-1.0, -2.0])
    found = policy_loss(step.bind(log_probs=leaf(-1.0, -2.0)), PPOClip()).metrics.compute()
    assert {found[name] for name in ("approx_kl", "log_ratio_max", "log_ratio_min", "clip_fraction")} == {0.0}


def test_the_plain_policy_gradient_needs_no_old_scores() -> None:
    log_probs = leaf(-1.0, -2.0)
    step = AdvantageBatch(response_lengths=[2], loss_mask=[[1, 1]], advantages=double(1.0, -2.0)).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), OBJECTIVES["reinforce"]()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, 2.0]
