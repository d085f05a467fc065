"""Every objective of the registry equals the obvious implementation, in value and gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from rollout_contract import PolicyBatch, TISBatch, policy_loss
from rollout_contract.corrections import Reject, Truncate
from rollout_contract.objectives import GMPO, GSPO, VESPO, PPOClip, Reinforce
from rollout_contract.objectives.base import Objective
from rollout_contract.schema.batch import RolloutBatch
from tests.properties.batches import Case, cases
from tests.properties.compare import FEW, FEWER, MODE, assert_close, assert_loss
from tests.properties.objective_references import CLIP, KINDS, REFERENCES, SEED, VESPO_SHAPE, Config, Inputs, Reference
from tests.properties.setups import setup
from tests.reference import corrections
from tests.reference import ratio_objectives as ratio
from tests.reference import score_objectives as score
from tests.reference.scalars import Mask, Rows, numbers

VARIANTS = [(name, config, made) for name, variants in REFERENCES.items() for config, made in variants]


def test_every_objective_has_a_reference() -> None:
    assert set(REFERENCES) == set(KINDS)


def bound(case: Case, objective: Objective) -> tuple[RolloutBatch, Tensor]:
    """A weighted batch with live log-probs, and these."""
    made = setup(objective.reads, case)
    late = made.live()
    return made.build().weighted(MODE).bind(**late), late["log_probs"]


@pytest.mark.parametrize(
    ("name", "config", "reference"), VARIANTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(VARIANTS)]
)
@given(case=cases())
@FEW
def test_objective(name: str, config: Config, reference: Reference, case: Case) -> None:
    objective: Any = KINDS[name](**config)
    batch, live = bound(case, objective)
    torch.manual_seed(SEED)
    loss = policy_loss(batch, objective)
    inputs = Inputs.of(case)
    expected = reference(inputs)
    assert_loss(loss, live, expected, inputs.log_probs, case, repr(objective))

    torch.manual_seed(SEED)
    terms = objective.terms(batch).loss.detach()
    assert torch.isfinite(terms).all()
    assert_close(terms.where(batch.loss_mask, 0.0), numbers(expected), what=f"{objective} terms")


# -- with a correction -------------------------------------------------------------------------------------------------


def geometric_mean(weights: list[list[float]], mask: Mask) -> list[list[float]]:
    """exp(mean log(w + 1e-10)) of each sample, at each of its trained tokens."""
    result = []
    for ws, ms in zip(weights, mask, strict=True):
        logs = [math.log(w + 1e-10) for w, keep in zip(ws, ms, strict=True) if keep]
        result.append([math.exp(sum(logs) / len(logs)) if keep else 0.0 for keep in ms])
    return result


def times(weights: list[list[float]], losses: Rows) -> Rows:
    return [[w * loss for w, loss in zip(ws, ls, strict=True)] for ws, ls in zip(weights, losses, strict=True)]


CORRECTED: list[tuple[Any, Callable[[Inputs, list[list[float]]], Rows]]] = [
    (PPOClip(**CLIP), lambda x, w: times(w, ratio.ppo_clip(*x.on_old, **CLIP))),
    (GSPO(**CLIP), lambda x, w: times(w, ratio.gspo(*x.on_old, **CLIP))),
    (Reinforce(), lambda x, w: times(w, score.reinforce(x.log_probs, x.advantages, x.mask))),
    (
        GMPO(**CLIP, log_ratio_bound=None),
        lambda x, w: times(
            geometric_mean(w, x.mask),
            ratio.geo_mean(x.log_probs, x.old, x.sample_advantages, x.mask, **CLIP, zero_advantage="max"),
        ),
    ),
    (VESPO(**VESPO_SHAPE), lambda x, w: score.vespo(*x.on_old, **VESPO_SHAPE, weights=w)),
]


class Step(PolicyBatch, TISBatch):
    """A step whose rollouts are corrected."""


@pytest.mark.parametrize(("objective", "reference"), CORRECTED, ids=[o.name for o, _ in CORRECTED])
@pytest.mark.parametrize("weighted_first", [False, True])
@given(case=cases())
@FEWER
def test_corrected_step(objective: Any, reference: Any, weighted_first: bool, case: Case) -> None:
    """A step with truncated weights and rejected tokens: these leave the mask and the denominators."""
    scores = case.tokens["old_log_probs"], case.tokens["rollout_log_probs"]
    truncated = corrections.truncate(corrections.ratios(*scores, case.mask, "token"), case.mask, None, 1.5)
    xs = corrections.log_ratios(*scores, case.mask)
    kept = replace(case, mask=corrections.statistic_mask(xs, case.mask, "k3", "mean", None, 0.3))

    made = setup(Step, case)
    late = made.live()
    step = made.build()
    correction = (Truncate(high=1.5) & Reject(statistic="k3", level="sequence-mean", high=0.3))(step)
    step = step.weighted(MODE).corrected(correction) if weighted_first else step.corrected(correction).weighted(MODE)
    loss = policy_loss(step.bind(**late), objective)

    inputs = Inputs.of(kept)
    assert_loss(loss, late["log_probs"], reference(inputs, truncated), inputs.log_probs, kept, objective.name)
