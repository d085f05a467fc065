"""Cutting graphs: what makes a tensor fit for a fixed field."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from rollout_contract.configuration import Settings
from rollout_contract.errors import Violation
from rollout_contract.schema.plan import FieldSpec

_PINNED_BYTES = 2**24
_PINNED_RATIO = 8


def cut_graph(spec: FieldSpec, tensor: Tensor, settings: Settings) -> tuple[Tensor, Violation | None]:
    """The same values without a graph, as an ordinary tensor that owns each of its entries.

    Nothing is copied unless there is something to repair: an inference-mode tensor cannot be saved for backward even
    after ``detach``, and in an expanded view one write would hit several entries.
    """
    violation = _report_live(spec, tensor, settings) if tensor.requires_grad else None
    tensor = tensor.detach()
    if tensor.is_inference() or has_overlap(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor, violation


def _report_live(spec: FieldSpec, tensor: Tensor, settings: Settings) -> Violation | None:
    if settings.live_inputs == "cut":
        return None
    expected = "a tensor without an autograd graph: the field is a fixed input of the loss"
    hint = "score under torch.no_grad(), or detach where the scores are made"
    violation = Violation(spec.name, "live graph", expected, describe_graph(tensor), hint)
    if settings.live_inputs == "refuse":
        return violation
    warnings.warn(f"a live graph was cut from a fixed field\n{violation}", LiveInputWarning, stacklevel=2)
    return None


class LiveInputWarning(UserWarning):
    """A fixed field came with a live autograd graph, which was cut (setting ``live_inputs="warn"``)."""


def describe_graph(tensor: Tensor) -> str:
    """Where a live tensor's graph comes from."""
    if tensor.grad_fn is None:
        return "a leaf tensor with requires_grad=True"
    return f"a live graph (grad_fn {tensor.grad_fn.name()})"


def has_overlap(tensor: Tensor) -> bool:
    """Whether two entries may share memory.

    Sorted by stride, each dimension must step over all that the smaller ones cover; that is sufficient for disjoint
    entries, and true for every slice, transpose or permutation of a contiguous tensor.
    """
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return False
    covered = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride <= covered:
            return True
        covered += stride * (size - 1)
    return False


def pins_memory(tensor: Tensor) -> bool:
    """Whether a small view keeps a storage alive that is many times larger and worth the copy."""
    try:
        held = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        # Wrappers of function transforms and some subclasses have no storage of their own.
        return False
    return held > _PINNED_BYTES and held > _PINNED_RATIO * tensor.nbytes
