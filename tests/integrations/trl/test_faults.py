"""Faults in TRL's inputs that are no graphs: what is wrong, in which row, and under which of TRL's keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.errors import (
    ContractError,
    DTypeError,
    LengthError,
    MissingFieldError,
    NonFiniteError,
    ShapeError,
)
from rollout_contract.integrations.trl import ContractGRPOTrainer
from tests.integrations.trl.test_leaks import step_of


def edited(values: Tensor, value: float) -> Tensor:
    values = values.clone()
    values[1, 0] = value
    return values


FAULTS: dict[str, tuple[str, Callable[[Tensor], Tensor | None], type[ContractError], str]] = {
    "NaN": ("old_per_token_logps", lambda t: edited(t, float("nan")), NonFiniteError, "old_log_probs [value], row 1"),
    "above zero": ("ref_per_token_logps", lambda t: edited(t, 0.75), NonFiniteError, "ref_log_probs [value], row 1"),
    "half precision": ("old_per_token_logps", lambda t: t.bfloat16(), DTypeError, "old_log_probs [dtype]"),
    "too few rows": ("ref_per_token_logps", lambda t: t[:3], ShapeError, "ref_log_probs [shape]"),
    "too few columns": ("ref_per_token_logps", lambda t: t[:, :2], LengthError, "ref_log_probs [length]"),
    "not given": ("ref_per_token_logps", lambda t: None, MissingFieldError, "ref_log_probs [missing]"),
    "no ratio": ("importance_sampling_ratio", lambda t: None, MissingFieldError, "correction_weights [missing]"),
    "infinite ratio": (
        "importance_sampling_ratio",
        lambda t: edited(t, torch.inf),
        NonFiniteError,
        "row 1, position 0",
    ),
    "no number": ("advantages", lambda t: t * torch.nan, NonFiniteError, "advantages [value], row 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, tmp_path: Path, reference_path: Path) -> None:
    key, break_it, kind, message = FAULTS[name]
    trainer, inputs = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    faulty: dict[str, Any] = {**inputs, key: break_it(inputs[key])}
    with pytest.raises(kind) as error:
        trainer._compute_loss(trainer.model, faulty)
    assert message in str(error.value)
    assert key in str(error.value)


def test_the_error_in_the_documentation(tmp_path: Path, reference_path: Path) -> None:
    trainer, inputs = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    key, break_it, kind, _ = FAULTS["above zero"]
    with pytest.raises(kind) as error:
        trainer._compute_loss(trainer.model, {**inputs, key: break_it(inputs[key])})
    assert str(error.value) in (Path(__file__).parents[3] / "docs" / "integrations" / "trl.md").read_text()


def test_garbage_in_the_padding_changes_nothing(tmp_path: Path, reference_path: Path) -> None:
    trainer, inputs = step_of(ContractGRPOTrainer, tmp_path, reference_path)
    padding = inputs["completion_mask"] == 0
    assert padding.any()
    dirty = dict(inputs)
    for key in ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"):
        dirty[key] = inputs[key].masked_fill(padding, torch.nan)
    clean, other = (trainer._compute_loss(trainer.model, each) for each in (inputs, dirty))
    assert torch.equal(clean, other)
    gradients = [torch.autograd.grad(loss, list(trainer.model.parameters())) for loss in (clean, other)]
    assert all(torch.equal(mine, his) for mine, his in zip(*gradients, strict=True))
