"""Valid batches build, broken ones raise what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract import ContractError, Fixed, KLBatch, Metadata, PerSample, PolicyBatch, policy_loss, unbound
from rollout_contract import schemas as ready
from rollout_contract.check.subjects import is_schema
from rollout_contract.objectives import PPOClip
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import EntropyBatch
from rollout_contract.testing import BrokenBatch, batches, broken_batches
from rollout_contract.testing.breakages import BREAKAGES


class Wide(PolicyBatch, KLBatch, EntropyBatch):
    """Every kind of field."""

    difficulty: PerSample[float]
    mode: Metadata[str]
    versions: Fixed[Int[Tensor, "tokens"]]
    top_log_probs: Fixed[Float[Tensor, "tokens topk"]]
    is_tool: Fixed[Bool[Tensor, "tokens"]] = unbound()
    baseline: Fixed[Float[Tensor, "groups"]]
    input_ids: Fixed[Int[Tensor, "sequence"]]


SCHEMAS = [Wide, *(thing for thing in vars(ready).values() if is_schema(thing) and thing is not RolloutBatch)]
FAST = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@FAST
@given(st.data(), st.sampled_from(SCHEMAS))
def test_valid_batches_build(data: st.DataObject, schema: type[RolloutBatch]) -> None:
    batch = data.draw(batches(schema))
    assert type(batch) is schema
    assert not batch.has("loss_weights")
    assert not any(batch.has(spec.name) for spec in schema.__plan__.values() if spec.role is Role.TRAINABLE)


@FAST
@given(batches(Wide, bound=True))
def test_bound_batches_are_ready_for_a_loss(batch: Wide) -> None:
    loss = policy_loss(batch, PPOClip())
    assert torch.isfinite(loss.value)
    assert loss.value.requires_grad
    assert batch.entropy.requires_grad


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.apply.__name__.strip("_"))
def test_every_breakage_is_possible_for_some_schema(breakage: object) -> None:
    assert any(breakage.targets(schema.__plan__) for schema in SCHEMAS)


@settings(FAST, max_examples=60)
@given(broken_batches(Wide))
def test_broken_batches_raise_the_violation_they_name(broken: BrokenBatch) -> None:
    with pytest.raises(ContractError) as caught:
        broken.build()
    assert {(v.field, v.rule) for v in caught.value.violations} == {(broken.field, broken.rule)}


@FAST
@given(st.data(), st.sampled_from(SCHEMAS))
def test_broken_batches_of_every_schema(data: st.DataObject, schema: type[RolloutBatch]) -> None:
    broken = data.draw(broken_batches(schema))
    assert repr(broken) == f"BrokenBatch({schema.__name__}: {broken.field} [{broken.rule}])"
    with pytest.raises(ContractError) as caught:
        broken.build()
    assert (caught.value.field, caught.value.rule) == (broken.field, broken.rule)


def test_sizes_are_limited() -> None:
    @FAST
    @given(batches(PolicyBatch, max_samples=2, max_length=3))
    def small(batch: PolicyBatch) -> None:
        assert len(batch) <= 2
        assert batch.layout.max_length <= 3

    small()
