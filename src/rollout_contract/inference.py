"""Tensors that outlive inference mode."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def ordinary_tensors() -> Generator[None]:
    """Make ordinary tensors even under inference mode; grad mode stays as it is.

    One made under inference mode cannot be saved for backward, not even after ``detach``, and whatever is kept (a
    batch, an index map) may be used for training later.
    """
    grad_mode = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
        yield
