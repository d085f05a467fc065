"""Every objective of the registry equals the obvious implementation, in value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from rollout_contract import policy_loss
from rollout_contract.objectives.base import Objective
from rollout_contract.schema.batch import RolloutBatch
from tests.properties.batches import Case, cases
from tests.properties.compare import FEW, assert_close, pack
from tests.properties.objective_references import KINDS, REFERENCES, SEED, Config, Inputs, Reference
from tests.properties.setups import setup
from tests.reference import aggregation
from tests.reference.scalars import gradients, numbers, weighted_sum

VARIANTS = [(name, config, made) for name, variants in REFERENCES.items() for config, made in variants]


def test_every_objective_has_a_reference() -> None:
    assert set(REFERENCES) == set(KINDS)


def bound(case: Case, objective: Objective) -> tuple[RolloutBatch, Tensor]:
    """A weighted batch with live log-probs, and these."""
    made = setup(objective.reads, case)
    late = made.live()
    return made.build().weighted("seq-mean-token-mean").bind(**late), late["log_probs"]


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
    loss.backward()

    inputs = Inputs.of(case)
    expected = reference(inputs)
    weights = aggregation.seq_mean_token_mean(case.mask, count_empty=False)
    total = weighted_sum(expected, weights)
    size = sum(
        abs(w * float(x.detach()))
        for ws, xs in zip(weights, expected, strict=True)
        for w, x in zip(ws, xs, strict=True)
    )
    assert_close(loss.value, total.detach(), scale=size, what=f"{objective} value")

    mask = torch.tensor([keep for row in case.mask for keep in row], dtype=torch.bool)
    torch.manual_seed(SEED)
    terms = objective.terms(batch).loss.detach()
    assert torch.isfinite(terms).all()
    assert_close(terms.where(mask, 0.0), numbers(expected), what=f"{objective} terms")

    wanted = pack(gradients(total, inputs.log_probs))
    assert live.grad is not None
    assert_close(
        live.grad, wanted, scale=float(wanted.abs().max()) if len(wanted) else 1.0, what=f"{objective} gradient"
    )
