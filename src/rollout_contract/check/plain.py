"""Arguments that are neither batches nor tensors: numbers, enums, options."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import torch

from rollout_contract.check import values
from rollout_contract.check.findings import CannotCheckError
from rollout_contract.check.sizes import Sizes
from rollout_contract.layout import Layout


@dataclass(frozen=True)
class Unresolved:
    """An annotation with a name that is only there for type checkers."""

    text: str

    @property
    def is_about_tensors(self) -> bool:
        return any(word in self.text for word in ("Batch", "Tensor", "Fixed[", "Trainable["))


def plain_value(name: str, kind: Any, sizes: Sizes, device: str = "cpu") -> Any:
    """An argument that is neither a batch nor a tensor, from its name and annotation.

    Raises:
        CannotCheckError: nothing plausible comes to mind.
    """
    if kind is Layout:
        return Layout(sizes.response_lengths, prompt_lengths=sizes.prompt_lengths, group_ids=sizes.group_ids)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    known = {torch.device: torch.device(device), torch.dtype: torch.float32, None: None}
    if kind in known and kind is not None:
        return known[kind]
    for member in get_args(kind) if isinstance(kind, types.UnionType) else (kind,):
        if member in (bool, int, float):
            return values.scalar(name, member, sizes)
    return _other_value(name, kind)


def _other_value(name: str, kind: Any) -> Any:
    if isinstance(kind, Unresolved):
        shown = f"{name}: {kind.text}"
        raise CannotCheckError(f"an annotation cannot be evaluated at run time ({shown}); import its names")
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if type(None) in get_args(kind):
        return None
    if inspect.isclass(kind) and kind not in (str, object):
        try:
            return kind()
        except Exception as error:
            shown = f"{name}: {kind.__name__}"
            raise CannotCheckError(f"no value for parameter {shown}: {kind.__name__}() fails; {_REPAIR}") from error
    shown = name if kind is None else f"{name}: {getattr(kind, '__name__', kind)}"
    raise CannotCheckError(f"no value can be made up for parameter {shown}; {_REPAIR}")


_REPAIR = "give it a default, or give the module a functools.partial that fills it in"
