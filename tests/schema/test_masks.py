"""Masks of every dtype become bool once; other values than 0 and 1 are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rollout_contract import settings
from rollout_contract.errors import MaskError, ShapeError
from tests.schema.batches import NAN, policy_batch

BITS = [1, 1, 1, 0, 1]
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES + FLOATS, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    mask = policy_batch(loss_mask=torch.tensor(BITS, dtype=dtype)).loss_mask
    assert mask.dtype == torch.bool
    assert mask.tolist() == [bool(bit) for bit in BITS]


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1], [1, 0, 1]],
        [[True, True], [True, False, True]],
        [[1.0, 1.0], [1.0, 0.0, 1.0]],
        [[True, 1], [1.0, 0, 1]],
        BITS,
        [torch.tensor([1, 1]), torch.tensor([1, 0, 1])],
        [torch.tensor([True, True]), torch.tensor([True, False, True])],
        np.array(BITS),
        np.array(BITS, dtype=bool),
        [np.array([1, 1]), np.array([1, 0, 1])],
    ],
    ids=str,
)
def test_every_container(mask: Any) -> None:
    assert policy_batch(loss_mask=mask).loss_mask.tolist() == [bool(bit) for bit in BITS]


def test_a_bool_mask_is_not_copied() -> None:
    mask = torch.tensor(BITS, dtype=torch.bool)
    assert policy_batch(loss_mask=mask).loss_mask.data_ptr() == mask.data_ptr()


@pytest.mark.parametrize("bad", [0.5, 2, -1, NAN, float("inf"), 1e-9, 1.0000001])
@pytest.mark.parametrize("form", ["tensor", "rows", "float64"])
def test_other_values_are_refused_with_their_place(bad: float, form: str) -> None:
    bits = [1.0, 1.0, 1.0, bad, 1.0]
    dtype = torch.float64 if form == "float64" else torch.float32
    mask: Any = [bits[:2], bits[2:]] if form == "rows" else torch.tensor(bits, dtype=dtype)
    with pytest.raises(MaskError) as caught:
        policy_batch(loss_mask=mask)
    error = caught.value
    assert (error.field, error.row, error.position) == ("loss_mask", 1, 1)
    assert float(error.found) == pytest.approx(bad, rel=1e-6, nan_ok=True)
    assert error.hint == "weights other than 0 and 1 belong in a field of their own, for example loss_weights"


def test_values_are_looked_at_where_that_is_asked_for() -> None:
    mask = torch.tensor([1, 1, 2, 0, 1])
    for level in ("off", "structure"):
        with settings(level=level):
            assert policy_batch(loss_mask=mask).loss_mask.tolist() == [bool(bit) for bit in BITS]


@pytest.mark.parametrize(
    ("mask", "repair"),
    [
        (torch.ones(2, 3), "this looks padded: Layout(response_lengths).pack(tensor) gives the packed form"),
        (torch.ones(5, 1), "a trailing dimension of 1 broadcasts silently: drop it with .squeeze(-1)"),
        (torch.tensor(1), "a scalar is never broadcast: give one value per entry"),
    ],
)
def test_masks_of_another_shape(mask: torch.Tensor, repair: str) -> None:
    with pytest.raises(ShapeError) as caught:
        policy_batch(loss_mask=mask)
    assert caught.value.hint == repair
