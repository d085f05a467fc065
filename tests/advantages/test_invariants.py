"""What holds for every estimator of the registry, so that a new one cannot be forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import distillation, errors
from rollout_contract.advantages import ESTIMATORS, AdvantagesAndReturns, RoleAdvantages, RoleBaselines, whiten
from rollout_contract.schema.batch import RolloutBatch
from tests.advantages.batches import Case, EveryInput, make_case, over_cases

ARGUMENTS: dict[str, dict[str, Any]] = {"role_conditioned": {"baselines": RoleBaselines.of({"judge": 0.5})}}
NAMES = sorted(ESTIMATORS)
assert distillation.opd_advantages.__name__ in NAMES
PER_TOKEN = ["token_rewards", "values", "old_log_probs", "sum_pi_squared", "teacher_log_probs", "reverse_kl"]
PER_SAMPLE = ["rewards", "reward_components", "reward_baselines", "final_values"]
GARBAGE = [float("nan"), float("inf"), float("-inf"), 1e30]


def run(name: str, batch: RolloutBatch) -> list[Tensor]:
    """All tensors [tokens] that an estimator gives."""
    found = ESTIMATORS[name].function(batch, **ARGUMENTS.get(name, {}))
    if isinstance(found, RoleAdvantages):
        return [found.advantages]
    return list(found) if isinstance(found, AdvantagesAndReturns) else [found]


def whitened(batch: EveryInput) -> list[Tensor]:
    return [whiten(batch, batch.values)]


RUNS: dict[str, Callable[[EveryInput], list[Tensor]]] = {
    **{name: lambda batch, name=name: run(name, batch) for name in NAMES},
    "whiten": whitened,
}


def bits(tensors: list[Tensor]) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


SOME = make_case(7, [4, 0, 3, 5, 1, 6, 2], 3, "real")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_values_are_never_seen(name: str, garbage: float) -> None:
    clean = SOME.batch()
    dirty = {field: getattr(clean, field).where(clean.loss_mask, garbage) for field in PER_TOKEN}
    assert bits(RUNS[name](SOME.batch(**dirty))) == bits(RUNS[name](clean))


@pytest.mark.parametrize("name", RUNS)
@over_cases
def test_results_are_zero_where_masked_and_finite(name: str, case: Case) -> None:
    batch = case.batch()
    for result in RUNS[name](batch):
        assert result.shape == (batch.layout.num_tokens,)
        assert torch.isfinite(result).all()
        assert bool((result[~batch.loss_mask] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RUNS)
def test_results_are_fixed_and_keep_dtype(name: str, dtype: torch.dtype) -> None:
    batch = SOME.batch(dtype)
    before = {field: getattr(batch, field).clone() for field in PER_TOKEN + PER_SAMPLE}
    with torch.enable_grad():
        results = RUNS[name](batch)
    for result in results:
        assert (result.requires_grad, result.grad_fn, result.dtype) == (False, None, dtype)
        assert result.device == batch.device
    for field, value in before.items():
        assert torch.equal(getattr(batch, field), value)


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"role_conditioned"}))
def test_order_of_samples_does_not_matter(name: str) -> None:
    """The moving averages of roles are the one exception: they follow the order."""
    order = list(range(len(SOME.mask)))
    random.Random(3).shuffle(order)
    for found, moved in zip(RUNS[name](SOME.batch()), RUNS[name](SOME.permuted(order).batch()), strict=True):
        rows = SOME.batch().layout.split(found)
        torch.testing.assert_close(torch.cat([rows[i] for i in order]), moved, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1]])
def test_hardly_any_tokens(name: str, lengths: list[int]) -> None:
    batch = make_case(0, lengths, 1, "real").batch()
    for result in RUNS[name](batch):
        assert result.shape == (sum(lengths),)
        assert torch.isfinite(result).all()


@pytest.mark.parametrize("name", RUNS)
def test_everything_masked(name: str) -> None:
    batch = SOME.batch(loss_mask=torch.zeros(sum(SOME.lengths), dtype=torch.bool))
    for result in RUNS[name](batch):
        assert bool((result == 0).all())


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("scale", [1e-30, 1e15])
def test_extreme_sizes_stay_finite(name: str, scale: float) -> None:
    fields = [*PER_SAMPLE, "token_rewards", "values"]
    batch = SOME.batch(torch.float32)
    scaled = SOME.batch(torch.float32, **{field: getattr(batch, field) * scale for field in fields})
    for result in RUNS[name](scaled):
        assert torch.isfinite(result).all()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("live", [*PER_TOKEN, *PER_SAMPLE])
def test_live_inputs_are_cut(name: str, live: str) -> None:
    """A live field is cut by the build, and a result could not carry its graph anyway."""
    source = getattr(SOME.batch(), live).clone().requires_grad_()
    for result in RUNS[name](SOME.batch(**{live: source * 1.0})):
        assert not result.requires_grad
    assert source.grad is None


@pytest.mark.parametrize("name", RUNS)
def test_a_field_edited_in_place_is_found(name: str) -> None:
    batch = SOME.batch()
    batch.values.add_(1.0)
    with pytest.raises(errors.MutatedError, match="values"):
        RUNS[name](batch)


@pytest.mark.parametrize("name", NAMES)
def test_another_schema_is_refused_by_name(name: str) -> None:
    batch = RolloutBatch(response_lengths=[1], loss_mask=[[1]])
    with pytest.raises(errors.MissingFieldError) as caught:
        run(name, batch)
    assert ESTIMATORS[name].reads.__name__ in str(caught.value)
    with pytest.raises(errors.MissingFieldError, match="Tensor"):
        ESTIMATORS[name].function(torch.zeros(3), **ARGUMENTS.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_is_complete(name: str) -> None:
    entry = ESTIMATORS[name]
    assert entry.name == name
    assert issubclass(entry.reads, RolloutBatch)
    assert entry.formula
    assert entry.paper.startswith(("arXiv:", "https://"))
    assert all(entry.known_as.values())
    assert entry.function.__doc__
