"""Index maps reach an accelerator without the host waiting for it. (No accelerator is needed to see how.)"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.layout import Layout


def test_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def pin_memory(tensor: Tensor) -> Tensor:
        calls.append("pinned")
        return tensor

    def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        calls.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(Tensor, "to", to)
    Layout([2, 0, 1]).lengths("cuda")
    assert calls == ["pinned", ("cuda", True)]


def test_without_an_accelerator() -> None:
    assert Layout([2, 0, 1]).lengths("meta").is_meta
