"""Whoever sends a live tensor is named."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch

from rollout_contract import PolicyBatch, settings
from rollout_contract.corrections import Correction
from rollout_contract.errors import LiveGraphError
from rollout_contract.schemas import TISBatch
from rollout_contract.testing import watch_cuts


def build(old: torch.Tensor) -> PolicyBatch:
    return PolicyBatch(response_lengths=[2], loss_mask=[True, True], old_log_probs=old, advantages=[1.0, 2.0])


def live() -> torch.Tensor:
    return torch.tensor([-1.0, -2.0], requires_grad=True) * 1.0


def test_a_cut_is_noted_with_its_producer() -> None:
    with watch_cuts() as cuts:
        build(live())
    (cut,) = cuts
    assert cut.field == "old_log_probs"
    assert cut.graph == "a live graph (grad_fn MulBackward0)"
    places = [place.rpartition(":") for place in cut.stack[:2]]
    assert {Path(file) for file, _, _ in places} == {Path(__file__)}
    lines = [Path(__file__).read_text().splitlines()[int(line) - 1].strip() for _, _, line in places]
    assert lines[0].startswith("return PolicyBatch(")
    assert lines[1] == "build(live())"
    text = str(cut).splitlines()
    assert text[0] == "old_log_probs: a live graph was cut silently"
    assert text[2].startswith("  built at  ")
    assert text[3].startswith("  from      ")


def test_a_correction_cuts_too() -> None:
    batch = TISBatch(response_lengths=[2], loss_mask=[1, 1], old_log_probs=[-1.0, -2.0], rollout_log_probs=[-1.0, -1.0])
    with watch_cuts() as cuts:
        Correction(batch, weights=live().exp())
    assert [cut.field for cut in cuts] == ["weights"]


def test_what_is_not_live_or_not_silent_is_not_noted() -> None:
    with watch_cuts() as cuts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build(live().detach())
        with settings(live_inputs="warn"):
            build(live())
        with settings(live_inputs="refuse"), pytest.raises(LiveGraphError):
            build(live())
    assert cuts == []


def test_other_threads_are_watched_and_nothing_is_after_the_block() -> None:
    with watch_cuts() as cuts:
        thread = threading.Thread(target=lambda: build(live()))
        thread.start()
        thread.join()
    build(live())
    assert len(cuts) == 1
