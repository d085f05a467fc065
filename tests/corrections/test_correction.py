"""The Correction object: what it refuses, what it detaches, and that nothing changes it afterwards."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from rollout_contract import metrics
from rollout_contract.configuration import settings
from rollout_contract.corrections import Correction, Truncate
from rollout_contract.errors import (
    ContractError,
    CorrectionError,
    DTypeError,
    FrozenError,
    LiveGraphError,
    MaskError,
    NonFiniteError,
    RowsError,
    SchemaError,
    ShapeError,
)
from rollout_contract.schemas import PolicyBatch, RolloutBatch, TISBatch
from tests.corrections.batches import make

NAN = float("nan")


@pytest.fixture
def batch() -> TISBatch:
    return make(
        [[-1.0, -2.0, -3.0], [-1.0, -1.0]], [[-1.5, -2.0, -2.0], [-1.0, -3.0]], [[True, True, False], [True, True]]
    )


def ones(batch: RolloutBatch) -> torch.Tensor:
    return torch.ones(batch.layout.num_tokens)


def test_weights_are_detached_and_zero_where_nothing_is_trained(batch: TISBatch) -> None:
    live = ones(batch).requires_grad_()
    correction = Correction(batch, weights=live * 2)
    assert correction.weights is not None
    assert correction.weights.tolist() == [2.0, 2.0, 0.0, 2.0, 2.0]
    assert not correction.weights.requires_grad
    assert correction.mask is None


def test_weights_from_inference_mode_become_ordinary_tensors(batch: TISBatch) -> None:
    with torch.inference_mode():
        correction = Correction(batch, weights=ones(batch) * 2)
    assert correction.weights is not None
    assert not correction.weights.is_inference()
    live = ones(batch).requires_grad_()
    (live * correction.weights).sum().backward()
    assert live.grad is not None
    assert live.grad.tolist() == [2.0, 2.0, 0.0, 2.0, 2.0]


def test_a_live_weight_is_refused_when_the_settings_say_so(batch: TISBatch) -> None:
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match=r"weights \[live graph\]"):
        Correction(batch, weights=ones(batch).requires_grad_())


def test_the_callers_tensor_is_not_shared(batch: TISBatch) -> None:
    weights, mask = ones(batch), batch.loss_mask.clone()
    correction = Correction(batch, weights=weights, mask=mask)
    weights.fill_(7.0)
    mask.fill_(False)
    assert correction.weights is not None
    assert correction.mask is not None
    assert correction.weights.tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert correction.mask.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("value", [NAN, float("inf"), -0.5])
def test_a_trained_token_needs_a_finite_weight_of_at_least_zero(batch: TISBatch, value: float) -> None:
    weights = ones(batch)
    weights[4] = value
    with pytest.raises(NonFiniteError) as caught:
        Correction(batch, weights=weights)
    assert (caught.value.field, caught.value.row, caught.value.position) == ("weights", 1, 1)
    assert caught.value.found == str(value)


@pytest.mark.parametrize("value", [NAN, float("inf"), -0.5, 1e30])
def test_what_a_weight_is_on_a_masked_token_does_not_matter(batch: TISBatch, value: float) -> None:
    weights = ones(batch)
    weights[2] = value
    correction = Correction(batch, weights=weights)
    assert correction.weights is not None
    assert correction.weights[2] == 0.0


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_wrong_shapes_and_dtypes(batch: TISBatch) -> None:
    with pytest.raises(ShapeError, match=r"\[5\], the batch's tokens"):
        Correction(batch, weights=torch.ones(2))
    with pytest.raises(ShapeError):
        Correction(batch, weights=torch.ones(5, 1))
    with pytest.raises(ShapeError, match="a float"):
        Correction(batch, weights=1.0)  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        Correction(batch, weights=ones(batch).half())
    with pytest.raises(DTypeError):
        Correction(batch, mask=ones(batch))
    with pytest.raises(ContractError) as caught:
        Correction(batch, weights=torch.ones(2), mask=ones(batch))
    assert [violation.field for violation in caught.value.violations] == ["weights", "mask"]


def test_a_mask_only_narrows(batch: TISBatch) -> None:
    with pytest.raises(MaskError) as caught:
        Correction(batch, mask=torch.ones(5, dtype=torch.bool))
    assert (caught.value.field, caught.value.row, caught.value.position) == ("mask", 0, 2)
    with settings(level="structure"):
        correction = Correction(batch, mask=torch.ones(5, dtype=torch.bool))
    assert correction.mask is not None
    assert torch.equal(correction.mask, batch.loss_mask)


def test_metrics_are_detached(batch: TISBatch) -> None:
    live = metrics.Metric("sum", torch.ones(1, requires_grad=True) * 3)
    correction = Correction(batch, metrics={"x": live})
    assert not correction.metrics["x"].parts.requires_grad
    assert correction.metrics.compute() == {"x": 3.0}


def test_it_belongs_to_its_rows(batch: TISBatch) -> None:
    correction = Truncate()(batch)
    assert correction.row_ids == batch.row_ids
    assert correction.response_lengths == (3, 2)
    assert batch.corrected(correction).has("correction_weights")
    with pytest.raises(RowsError):
        batch.select([1, 0]).corrected(correction)
    other = make([[-1.0, -2.0, -3.0], [-1.0, -1.0]], [[-1.5, -2.0, -2.0], [-1.0, -3.0]])
    with pytest.raises(RowsError):
        other.corrected(correction)


def test_nothing_can_be_assigned_deleted_or_inherited(batch: TISBatch) -> None:
    correction = Truncate()(batch)
    for name in ("weights", "mask", "metrics", "_weights", "anything"):
        with pytest.raises(FrozenError):
            setattr(correction, name, None)
        with pytest.raises(FrozenError):
            delattr(correction, name)
    assert not hasattr(correction, "__dict__")
    with pytest.raises(SchemaError):
        type("Mine", (Correction,), {})


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_validated_again(batch: TISBatch, duplicate: object) -> None:
    correction = Correction(batch, weights=ones(batch), mask=batch.loss_mask, metrics=Truncate()(batch).metrics)
    twin = duplicate(correction)  # type: ignore[operator]
    assert torch.equal(twin.weights, correction.weights)
    assert torch.equal(twin.mask, correction.mask)
    assert twin.metrics.compute() == correction.metrics.compute()
    assert batch.corrected(twin).row_ids == batch.row_ids
    assert correction.weights is not None
    correction.weights[0] = NAN
    with pytest.raises(NonFiniteError):
        duplicate(correction)  # type: ignore[operator]


def test_an_edit_in_place_is_found_by_the_batch(batch: TISBatch) -> None:
    correction = Truncate()(batch)
    corrected = batch.corrected(correction)
    assert correction.weights is not None
    correction.weights.mul_(2)
    with pytest.raises(ContractError):
        corrected.verify()


def test_corrections_combine(batch: TISBatch) -> None:
    mask = torch.tensor([True, False, False, True, True])
    combined = Correction(batch, weights=ones(batch) * 2) & Correction(batch, weights=ones(batch) * 3, mask=mask)
    assert combined.weights is not None
    assert combined.mask is not None
    assert combined.weights.tolist() == [6.0, 6.0, 0.0, 6.0, 6.0]
    assert combined.mask.tolist() == mask.tolist()
    assert (Correction(batch) & Correction(batch)).weights is None


def test_corrections_of_other_rows_do_not_combine(batch: TISBatch) -> None:
    with pytest.raises(RowsError):
        Correction(batch) & Correction(batch.select([1, 0]))


def test_metrics_are_never_counted_twice(batch: TISBatch) -> None:
    with pytest.raises(CorrectionError, match="truncate/ess"):
        Truncate()(batch) & Truncate(high=3.0)(batch)


def test_a_correction_and_something_else(batch: TISBatch) -> None:
    with pytest.raises(TypeError):
        Correction(batch) & 3


def test_repr(batch: TISBatch) -> None:
    assert repr(Truncate()(batch)) == "Correction(2 samples, 5 tokens: weights)"
    assert repr(Correction(batch)) == "Correction(2 samples, 5 tokens: nothing)"


def test_a_custom_correction_needs_only_what_it_reads() -> None:
    class Staleness(PolicyBatch):
        """Scores of the trainer, no scores of the sampler."""

    def halve_surprises(batch: Staleness) -> Correction:
        return Correction(batch, weights=torch.where(batch.old_log_probs < -2.0, 0.5, 1.0))

    step = Staleness(
        response_lengths=[2, 1],
        loss_mask=[[1, 1], [1]],
        old_log_probs=[[-1.0, -3.0], [-1.0]],
        advantages=[[1.0, 1.0], [1.0]],
    )
    corrected = step.corrected(halve_surprises(step))
    assert corrected.correction_weights.tolist() == [1.0, 0.5, 1.0]


def test_no_samples_and_no_tokens() -> None:
    for old in ([], [[]], [[], []]):
        batch = make(old, old)
        correction = Truncate()(batch)
        assert correction.weights is not None
        assert correction.weights.shape == (0,)
        assert batch.corrected(correction).layout.num_tokens == 0
