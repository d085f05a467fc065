"""Gradients of the loss terms, against formulas written by hand, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import objectives as obj
from rollout_contract.kernels.policy import clipped_surrogate
from rollout_contract.losses.inputs import read
from rollout_contract.objectives import Objective
from rollout_contract.schemas import PolicyBatch
from tests.objectives.batches import bind, live_log_probs, make_step, names

Formula = Callable[["Given"], Tensor]


class Given:
    """What the formulas are made of: packed tensors with 0 at masked-out tokens."""

    def __init__(self, step: Any, log_probs: Tensor) -> None:
        self.step, self.mask, self.layout = step, step.loss_mask, step.layout
        self.log_probs = log_probs.detach().where(self.mask, 0.0)

    def __getattr__(self, name: str) -> Tensor:
        return read(self.step, name)

    @property
    def counts(self) -> Tensor:
        return self.layout.expand(self.layout.sum(self.mask.double()).clamp(min=1.0))

    def total(self, values: Tensor) -> Tensor:
        """Each sample's sum over its trained tokens, at every token."""
        return self.layout.expand(self.layout.sum(values.where(self.mask, 0.0)))

    def mean(self, values: Tensor) -> Tensor:
        return self.total(values) / self.counts

    def log_ratio(self, anchor: str = "old_log_probs") -> Tensor:
        return self.log_probs - getattr(self, anchor)


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """1 where the clipped surrogate has a gradient."""
    return ~((advantages > 0) & (ratio > 1 + high) | (advantages < 0) & (ratio < 1 - low))


def ppo(g: Given) -> Tensor:
    ratio = g.log_ratio().exp()
    return -ratio * g.advantages * clipped(ratio, g.advantages, 0.2, 0.28)


def ppo_dual(g: Given) -> Tensor:
    ratio = g.log_ratio().exp()
    return ppo(g) * ~((g.advantages < 0) & (ratio > 1.2))


def gspo(g: Given) -> Tensor:
    """Token t moves the ratio of its sample by s / n, and so the loss of every token in it."""
    ratio = g.mean(g.log_ratio()).exp()
    return g.total(-ratio * g.advantages * clipped(ratio, g.advantages, 0.05, 0.1)) / g.counts


def gspo_token(g: Given) -> Tensor:
    ratio = g.mean(g.log_ratio()).exp()
    return -ratio * g.advantages * clipped(ratio, g.advantages, 0.05, 0.1)


def product(g: Given) -> Tensor:
    ratio = g.total(g.log_ratio()).exp()
    return g.total(-ratio * g.advantages * clipped(ratio, g.advantages, 0.2, 0.28))


def sapo(g: Given) -> Tensor:
    ratio = g.log_ratio().exp()
    tau = torch.where(g.advantages > 0, 1.0, 1.5).double()
    gate = torch.sigmoid(tau * (ratio - 1))
    return -4 * gate * (1 - gate) * ratio * g.advantages


def gmpo(g: Given) -> Tensor:
    """A sample's loss is -A exp(mean u); it stands at each of its n tokens, and du_t / dl_t is 1 inside the clip."""
    advantages, log_ratio = g.mean(g.advantages), g.log_ratio()
    clipped_up = log_ratio.clamp(max=0.2).where(advantages > 0, log_ratio.clamp(min=-0.1))
    inside = torch.where(advantages > 0, log_ratio <= 0.2, log_ratio >= -0.1)
    return -advantages * g.mean(clipped_up).exp() * inside


def cispo(g: Given) -> Tensor:
    return -g.log_ratio().exp().clamp(0.8, 1.28) * g.advantages


def cispo_rollout(g: Given) -> Tensor:
    return -g.log_ratio("rollout_log_probs").exp().clamp(max=1.1) * g.advantages


def rollout_is(g: Given) -> Tensor:
    ratio = g.log_ratio("rollout_log_probs").exp()
    return -ratio * ((ratio > 0.8) & (ratio < 1.28)) * g.advantages


def reinforce_rollout(g: Given) -> Tensor:
    return -g.log_ratio("rollout_log_probs").exp().clamp(0.9, 1.1) * g.advantages


def vespo(g: Given) -> Tensor:
    log_weight = g.total(g.log_ratio())
    weight = log_weight.exp()
    positive = weight**2 * (3 * (1 - weight)).exp()
    negative = weight**3 * (2 * (1 - weight)).exp()
    return -torch.where(g.advantages >= 0, positive, negative) * g.advantages


def topr(g: Given) -> Tensor:
    ratio = g.total(g.log_ratio("rollout_log_probs")).exp()
    return -torch.where(g.mean(g.advantages) < 0, ratio.clamp(max=1.0), 1.0) * g.advantages


def dppo_tv(g: Given) -> Tensor:
    shift = g.log_probs.exp() - g.rollout_log_probs.exp()
    keep = ~((g.advantages > 0) & (shift > 0.05) | (g.advantages < 0) & (shift < -0.04))
    log_ratio = g.log_ratio("rollout_log_probs")
    return -log_ratio.exp() * g.advantages * keep + 2 * 0.1 * log_ratio


def dppo_kl(g: Given) -> Tensor:
    p, q = g.log_probs.exp(), g.old_log_probs.exp()
    divergence = q * (q.log() - p.log()) + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    far = divergence > 0.01
    keep = ~(far & ((g.advantages > 0) & (p > q) | (g.advantages < 0) & (p < q)))
    return -g.log_ratio().exp().clamp(max=1.1) * g.advantages * keep


def dro(g: Given) -> Tensor:
    return -(g.advantages - 0.5 * g.log_ratio())


def optimal_advantage(g: Given) -> Tensor:
    advantage = g.layout.expand(g.rewards - g.optimal_values)
    return g.counts * 2 * 0.1 * (0.1 * g.total(g.log_ratio("ref_log_probs")) - advantage)


CLIP = {"clip_low": 0.2, "clip_high": 0.28}
NARROW = {"clip_low": 0.05, "clip_high": 0.1}
FORMULAS: list[tuple[Objective, Formula]] = [
    (obj.PPOClip(**CLIP), ppo),
    (obj.PPOClip(**CLIP, dual_clip=1.2), ppo_dual),
    (obj.PPOClip(**CLIP, ratio_cap=1.3), lambda g: ppo(g) * ~((g.advantages < 0) & (g.log_ratio().exp() > 1.3))),
    (obj.GSPO(**NARROW), gspo),
    (obj.GSPOToken(**NARROW), gspo_token),
    (obj.LUSPO(**NARROW), lambda g: g.counts * gspo(g)),
    (obj.ProductClip(**CLIP), product),
    (obj.CISPO(ratio_min=0.8, ratio_max=1.28), cispo),
    (obj.RolloutCISPO(ratio_max=1.1), cispo_rollout),
    (obj.RolloutIS(), rollout_is),
    (obj.SAPO(tau_positive=1.0, tau_negative=1.5), sapo),
    (obj.GMPO(clip_low=0.1, clip_high=0.2), gmpo),
    (obj.VESPO(), vespo),
    (obj.TOPR(), topr),
    (obj.Reinforce(), lambda g: -g.advantages),
    (obj.GPG(), lambda g: -g.advantages),
    (obj.RolloutReinforce(weight_min=0.9, weight_max=1.1), reinforce_rollout),
    (obj.ImportanceSampling(), lambda g: -g.log_ratio().exp() * g.advantages),
    (obj.OnPolicyRatio(), lambda g: -g.advantages),
    (obj.DPPO(delta_low=0.04, delta_high=0.05, drift=0.1), dppo_tv),
    (obj.ProximalDPPO(divergence="kl", delta_low=0.01, delta_high=0.01, truncation=1.1), dppo_kl),
    (obj.DRO(beta=0.5), dro),
    (obj.OptimalAdvantage(beta=0.1), optimal_advantage),
    (obj.NLL(), lambda g: -torch.ones_like(g.log_probs)),
    (obj.PositiveNLL(), lambda g: -g.positive_weights),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("objective", "formula"), FORMULAS, ids=lambda x: x.name if isinstance(x, Objective) else "")
def test_gradient_is_the_formula(objective: Objective, formula: Formula, seed: int) -> None:
    step = make_step(objective.reads, seed)
    log_probs = live_log_probs(step, seed + 100)
    terms = objective.terms(bind(step, log_probs))
    (gradient,) = torch.autograd.grad(terms.loss[step.loss_mask].sum(), log_probs)
    expected = formula(Given(step, log_probs)).where(step.loss_mask, 0.0)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


DIFFERENTIATED = [
    obj.PPOClip(**CLIP, dual_clip=1.5),
    obj.GSPO(**NARROW, average_advantages=True),
    obj.LUSPO(**NARROW),
    obj.ProductClip(**CLIP),
    obj.SAPO(),
    obj.SAPO(level="sequence"),
    obj.GMPO(),
    obj.Reinforce(),
    obj.ImportanceSampling(),
    obj.DPPO(drift=0.1),
    obj.ProbabilityMask(drift=0.1),
    obj.DRO(),
    obj.OptimalAdvantage(),
    obj.NLL(),
    obj.KLCov(fraction=0.3),
]


@pytest.mark.parametrize("objective", DIFFERENTIATED, ids=names)
def test_gradcheck(objective: Objective) -> None:
    """Objectives without a stop-gradient: autograd agrees with finite differences."""
    step = make_step(objective.reads, 5)
    log_probs = live_log_probs(step, 6)
    assert torch.autograd.gradcheck(lambda x: objective.terms(bind(step, x)).loss[step.loss_mask], log_probs, eps=1e-7)


def with_advantages(step: PolicyBatch, advantages: Tensor) -> PolicyBatch:
    return PolicyBatch(
        response_lengths=step.response_lengths,
        loss_mask=step.loss_mask,
        old_log_probs=step.old_log_probs,
        advantages=advantages,
    )


ZERO_WIDTH = {"clip_low": 0.0, "clip_high": 0.0}
AT_ONE = [obj.PPOClip(), obj.PPOClip(**ZERO_WIDTH), obj.GSPO(), obj.GSPO(**ZERO_WIDTH), obj.ImportanceSampling()]


@pytest.mark.parametrize("objective", AT_ONE, ids=names)
def test_at_ratio_one_it_is_the_policy_gradient(objective: Objective) -> None:
    """Both branches of the clip are equal there; the gradient is full, also for a clip range of width zero."""
    step = make_step(PolicyBatch)
    constant = step.layout.expand(torch.tensor([1.0, -1.0, 1.0, -2.0], dtype=torch.float64))
    step = with_advantages(step, constant)
    log_probs = step.old_log_probs.clone().requires_grad_()
    loss = objective.terms(step.bind(log_probs=log_probs)).loss
    (gradient,) = torch.autograd.grad(loss[step.loss_mask].sum(), log_probs)
    torch.testing.assert_close(gradient, -constant.where(step.loss_mask, 0.0))


def test_at_a_clip_bound_the_gradient_is_full() -> None:
    """As torch splits a tie: half from each branch, and the clamp passes the gradient at its own bound."""
    ratio = torch.tensor([0.75, 1.25, 0.75, 1.25], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    plain = torch.maximum(-ratio * advantages, -ratio.clamp(0.75, 1.25) * advantages)
    ours = clipped_surrogate(ratio, advantages, 0.25, 0.25)
    gradients = [torch.autograd.grad(loss.sum(), ratio)[0] for loss in (plain, ours)]
    assert gradients[0].tolist() == gradients[1].tolist() == [-1.0, -1.0, 1.0, 1.0]


def test_gspo_and_its_token_form_differ_only_where_advantages_vary() -> None:
    """Same value; the same gradient when the advantage is constant within a sample."""
    step = make_step(PolicyBatch, 3)
    log_probs = live_log_probs(step, 4, spread=0.01)
    constant = with_advantages(step, step.layout.expand(step.layout.mean(step.advantages, step.loss_mask)))
    for batch, equal in ((step, False), (constant, True)):
        bound = batch.bind(log_probs=log_probs)
        losses = [kind(**CLIP).terms(bound).loss for kind in (obj.GSPO, obj.GSPOToken)]
        torch.testing.assert_close(losses[0], losses[1])
        gradients = [torch.autograd.grad(loss[batch.loss_mask].sum(), log_probs)[0] for loss in losses]
        assert torch.allclose(*gradients) is equal
