"""For every objective of the registry: configurations, and the reference that each must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume

from rollout_contract.objectives import PPOClip, registry
from tests.properties.batches import POSITIVE_WEIGHT, Case
from tests.reference import distillation
from tests.reference import ratio_objectives as ratio
from tests.reference import score_objectives as score
from tests.reference import selective_objectives as selective
from tests.reference.scalars import Mask, Rows, kept, leaves, mean, row, rows


@dataclass(frozen=True)
class Inputs:
    """A case as the reference takes it: scalars in rows, of which the log-probs are live."""

    log_probs: Rows
    old: Rows
    rollout: Rows
    ref: Rows
    teacher: Rows
    advantages: Rows
    mask: Mask
    case: Case

    @classmethod
    def of(cls, case: Case) -> Inputs:
        scores = [f"{policy}_log_probs" for policy in ("old", "rollout", "ref", "teacher")]
        fixed = [rows(case.tokens[name]) for name in (*scores, "advantages")]
        return cls(leaves(case.tokens["log_probs"]), *fixed, case.mask, case)

    @property
    def on_old(self) -> tuple[Any, ...]:
        return self.log_probs, self.old, self.advantages, self.mask

    @property
    def on_rollout(self) -> tuple[Any, ...]:
        return self.log_probs, self.rollout, self.advantages, self.mask

    @property
    def sample_advantages(self) -> Rows:
        """Each token's advantage replaced by the mean over the trained tokens of its sample."""
        means = [mean(kept(a, m)) for a, m in zip(self.advantages, self.mask, strict=True)]
        return [[centre] * len(m) for centre, m in zip(means, self.mask, strict=True)]

    def drawn(self, number: int) -> set[tuple[int, int]]:
        """The tokens with the largest random numbers among Clip-Cov's candidates, after ``torch.manual_seed(SEED)``."""
        found = selective.clip_cov_candidates(*self.on_old, **CLIP, **BAND)
        torch.manual_seed(SEED)
        numbers = iter(torch.rand(sum(self.case.lengths)).tolist())
        by_place = {(i, t): next(numbers) for i, length in enumerate(self.case.lengths) for t in range(length)}
        return set(sorted(found, key=lambda place: -by_place[place])[:number])

    def choice_is_clear(self, fraction: float) -> bool:
        """Whether no two tokens compete for the last place among the largest covariances."""
        found = sorted(selective.covariances(self.log_probs, self.advantages, self.mask).values(), reverse=True)
        number = max(1, int(fraction * len(found)))
        return number >= len(found) or found[number - 1] - found[number] > 1e-9


Reference = Callable[[Inputs], Rows]
Config = Mapping[str, Any]
SEED = 7
BAND = {"cov_low": -0.3, "cov_high": 0.6}


def clip_cov(x: Inputs) -> Rows:
    dropped = x.drawn(selective.clip_cov_number(x.mask, 0.3))
    return selective.clip_cov(*x.on_old, dropped, **CLIP, log_ratio_clamp=20.0)


def kl_cov(x: Inputs) -> Rows:
    assume(x.choice_is_clear(0.3))
    return selective.kl_cov(*x.on_old, fraction=0.3, coef=0.5, log_ratio_clamp=20.0)


def only(keep: list[list[bool]], losses: Rows) -> Rows:
    return [[loss * k for loss, k in zip(ls, ks, strict=True)] for ls, ks in zip(losses, keep, strict=True)]


def opsm(x: Inputs, anchor: Rows) -> Rows:
    keep = selective.opsm_mask(x.log_probs, anchor, x.advantages, x.mask, delta=0.1)
    return only(keep, ratio.ppo_clip(*x.on_old, **CLIP))


def top_entropy(x: Inputs) -> Rows:
    entropies = rows(x.case.tokens["observed_entropy"])
    return only(selective.top_entropy_mask(entropies, x.mask, quantile=0.6), ratio.ppo_clip(*x.on_old, **CLIP))


def a_star_po(x: Inputs) -> Rows:
    rewards, values = row(x.case.samples["rewards"]), row(x.case.samples["optimal_values"])
    return score.a_star_po(x.log_probs, x.ref, rewards, values, x.mask, beta=0.1)


def positive_nll(x: Inputs) -> Rows:
    positive = [reward > 0 for reward in x.case.samples["rewards"]]
    return score.positive_nll(x.log_probs, positive, x.mask, weight=POSITIVE_WEIGHT)


def rollout_reverse_kl(x: Inputs, *, delta_low: float, drift: float) -> Rows:
    options = {"delta_low": delta_low, "drift": drift, "log_ratio_clamp": 20.0}
    return distillation.ref_kl(x.log_probs, x.rollout, x.teacher, x.mask, **options)


VESPO_SHAPE = {"k_positive": 1.5, "lambda_positive": 2.0, "k_negative": 2.5, "lambda_negative": 1.0}
CLIP = {"clip_low": 0.15, "clip_high": 0.28}
NARROW = {"clip_low": 0.05, "clip_high": 0.1}

KINDS = registry.OBJECTIVES

REFERENCES: dict[str, list[tuple[Config, Reference]]] = {
    "ppo_clip": [
        (CLIP, lambda x: ratio.ppo_clip(*x.on_old, **CLIP)),
        (
            {**CLIP, "dual_clip": 1.5, "log_ratio_bound": 3.0},
            lambda x: ratio.ppo_clip(*x.on_old, **CLIP, dual_clip=1.5, log_ratio_clamp=3.0),
        ),
        ({**CLIP, "ratio_cap": 1.4}, lambda x: ratio.ppo_clip(*x.on_old, **CLIP, ratio_cap=1.4)),
        ({**CLIP, "log_ratio_bound": None}, lambda x: ratio.ppo_clip(*x.on_old, **CLIP, log_ratio_clamp=None)),
    ],
    "product_clip": [(CLIP, lambda x: ratio.seq_product_clip(*x.on_old, **CLIP, log_ratio_clamp=20.0))],
    "gspo": [
        (NARROW, lambda x: ratio.gspo(*x.on_old, **NARROW)),
        (
            {**NARROW, "dual_clip": 1.2, "average_advantages": True},
            lambda x: ratio.gspo(*x.on_old, **NARROW, dual_clip=1.2, mean_advantage=True),
        ),
    ],
    "luspo": [(NARROW, lambda x: ratio.luspo(*x.on_old, **NARROW))],
    "gspo_token": [
        (
            {**NARROW, "log_ratio_cap": 10.0, "log_ratio_bound": None},
            lambda x: ratio.gspo_token(*x.on_old, **NARROW, log_ratio_max=10.0),
        ),
        (
            {**NARROW, "log_ratio_cap": 0.04},
            lambda x: ratio.gspo_token(*x.on_old, **NARROW, log_ratio_max=0.04, log_ratio_clamp=20.0),
        ),
    ],
    "geo_mean": [
        (
            {**NARROW, "log_ratio_bound": None},
            lambda x: ratio.geo_mean(x.log_probs, x.old, x.sample_advantages, x.mask, **NARROW, zero_advantage="max"),
        ),
    ],
    "sapo": [
        ({}, lambda x: ratio.sapo(*x.on_old, tau_positive=1.0, tau_negative=1.05)),
        (
            {"level": "sequence", "tau_positive": 2.0, "tau_negative": 3.0},
            lambda x: ratio.sapo(*x.on_old, tau_positive=2.0, tau_negative=3.0, sequence_level=True),
        ),
    ],
    "cispo": [
        (
            {"ratio_min": 0.8, "ratio_max": 1.28},
            lambda x: score.reinforce_with_ratio(*x.on_old, ratio_min=0.8, ratio_max=1.28),
        ),
        ({"ratio_max": 3.0}, lambda x: score.reinforce_with_ratio(*x.on_old, ratio_max=3.0)),
    ],
    "cispo_rollout": [({"ratio_max": 1.5}, lambda x: score.reinforce_with_ratio(*x.on_rollout, ratio_max=1.5))],
    "reinforce": [({}, lambda x: score.reinforce(x.log_probs, x.advantages, x.mask))],
    "gpg": [({}, lambda x: score.reinforce(x.log_probs, x.advantages, x.mask))],
    "reinforce_rollout": [
        (
            {"weight_min": 0.1, "weight_max": 10.0},
            lambda x: score.reinforce_with_ratio(*x.on_rollout, ratio_min=0.1, ratio_max=10.0),
        ),
    ],
    "rollout_is": [({"ratio_min": 0.85, "ratio_max": 1.28}, lambda x: score.rollout_is(*x.on_rollout, **CLIP))],
    "dppo": [
        (
            {"delta_low": 0.02, "delta_high": 0.05, "drift": 1e-3, "log_ratio_bound": None},
            lambda x: selective.dppo_tv(
                *x.on_rollout, delta_low=0.02, delta_high=0.05, drift=1e-3, log_ratio_clamp=None
            ),
        ),
        (
            {"divergence": "kl", "delta_low": 0.01, "delta_high": 0.0125},
            lambda x: selective.dppo_kl(*x.on_rollout, delta_low=0.01, delta_high=0.0125),
        ),
    ],
    "dppo_proximal": [
        (
            {"delta_low": 0.02, "delta_high": 0.05},
            lambda x: selective.dppo_tv(*x.on_old, delta_low=0.02, delta_high=0.05),
        ),
    ],
    "probability_mask": [
        ({"delta": 0.05, "drift": 1e-3}, lambda x: selective.ipo_mask(*x.on_rollout, delta=0.05, drift=1e-3)),
    ],
    "vespo": [
        (VESPO_SHAPE, lambda x: score.vespo(*x.on_old, **VESPO_SHAPE)),
        ({**VESPO_SHAPE, "log_ratio_bound": 2.0}, lambda x: score.vespo(*x.on_old, **VESPO_SHAPE, log_ratio_clamp=2.0)),
    ],
    "topr": [({}, lambda x: score.topr(*x.on_rollout))],
    "importance_sampling": [
        ({"log_ratio_bound": 5.0}, lambda x: ratio.is_surrogate(*x.on_old, log_ratio_clamp=5.0)),
    ],
    "on_policy_ratio": [({}, lambda x: ratio.on_policy_ratio(x.log_probs, x.advantages, x.mask))],
    "dro": [({"beta": 0.4}, lambda x: score.dro(*x.on_old, beta=0.4))],
    "nll": [({}, lambda x: score.nll(x.log_probs, x.mask))],
    "positive_nll": [({}, positive_nll)],
    "optimal_advantage": [({"beta": 0.1}, a_star_po)],
    "clip_cov": [
        ({**CLIP, "fraction": 0.3, "covariance_low": BAND["cov_low"], "covariance_high": BAND["cov_high"]}, clip_cov),
    ],
    "kl_cov": [({"fraction": 0.3, "coef": 0.5}, kl_cov)],
    "opsm": [({"objective": PPOClip(**CLIP)}, lambda x: opsm(x, x.rollout))],
    "opsm_proximal": [({"objective": PPOClip(**CLIP)}, lambda x: opsm(x, x.old))],
    "top_entropy": [({"objective": PPOClip(**CLIP), "fraction": 0.4}, top_entropy)],
    "sampled_reverse_kl": [({}, lambda x: distillation.sampled_token(x.log_probs, x.teacher, x.mask))],
    "weighted_reverse_kl": [
        (
            {"weight_max": 1.2},
            lambda x: distillation.sampled_token(x.log_probs, x.teacher, x.mask, old=x.old, ratio_max=1.2),
        ),
    ],
    "rollout_reverse_kl": [
        ({}, lambda x: rollout_reverse_kl(x, delta_low=2.0, drift=0.0)),
        (
            {"delta_low": 0.05, "drift": 1e-3},
            lambda x: rollout_reverse_kl(x, delta_low=0.05, drift=1e-3),
        ),
    ],
    "front_loaded_reverse_kl": [
        ({"gamma": 0.5}, lambda x: distillation.iw_opd(x.log_probs, x.rollout, x.teacher, x.mask, gamma=0.5)),
    ],
}
