"""Synthetic numbers that look like what their name says.

They depend on the name and the shape alone, so a function can be run again on the same numbers in another dtype.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from rollout_contract.check.sizes import Sizes

F = TypeVar("F", bound=Callable[..., Tensor])


def _real(make: F) -> F:
    """Numbers are made as real tensors, also while fake ones are in use."""

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Tensor:
        with unset_fake_temporarily():
            return make(*args, **kwargs)

    return cast("F", made)


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


@_real
def floats(name: str, shape: Sequence[int], on_policy: bool = False) -> Tensor:
    """float64 numbers; log-probs of one shape lie near each other, as those of one model at two times do.

    With ``on_policy`` they are equal.
    """
    noise = torch.randn(tuple(shape), generator=_generator(name), dtype=torch.float64)
    if "log_prob" in name or "logprob" in name or name in ("lp", "logp", "old", "ref"):
        base = torch.rand(tuple(shape), generator=_generator("log_probs"), dtype=torch.float64)
        return (-0.2 - 2.0 * base + (0.0 if on_policy else 0.1) * noise).clamp(max=-0.01)
    if "mask" in name:
        return (noise > -0.8).double()
    if "weight" in name or "prob" in name or "entropy" in name:
        return 0.1 + 0.8 * torch.rand(tuple(shape), generator=_generator(name), dtype=torch.float64)
    return noise


@_real
def integers(name: str, shape: Sequence[int], sizes: Sizes, below: int) -> Tensor:
    """int64 numbers in [0, below), except where the name says what they are."""
    known = _known_integers(name, shape, sizes)
    if known is not None:
        return known
    return torch.randint(max(below, 1), tuple(shape), generator=_generator(name))


def _known_integers(name: str, shape: Sequence[int], sizes: Sizes) -> Tensor | None:
    lengths = torch.tensor(sizes.response_lengths, dtype=torch.long)
    known = {
        "sample_ids": torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        "ids": torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        "response_lengths": lengths,
        "lengths": lengths,
        "prompt_lengths": torch.tensor(sizes.prompt_lengths, dtype=torch.long),
        "group_ids": torch.tensor(sizes.group_ids, dtype=torch.long),
        "group_index": torch.tensor([list(dict.fromkeys(sizes.group_ids)).index(g) for g in sizes.group_ids]),
        "positions": torch.cat([torch.arange(n) for n in (0, *sizes.response_lengths)]),
    }
    found = known.get(name)
    return found if found is not None and found.shape == tuple(shape) else None


@_real
def booleans(name: str, shape: Sequence[int]) -> Tensor:
    """About three in four are True."""
    return torch.randn(tuple(shape), generator=_generator(name)) > -0.7


@_real
def mask(shape: Sequence[int], sizes: Sizes) -> Tensor:
    """The tokens that train. Over packed tokens, or over the last of several dimensions.

    With ``holes`` each response keeps its first token and loses every third one after it.
    """
    tokens = sum(sizes.response_lengths)
    if sizes.masking == "none trained":
        return torch.zeros(tuple(shape), dtype=torch.bool)
    if tuple(shape) == (tokens,):
        positions = [position for length in sizes.response_lengths for position in range(length)]
        return torch.tensor([position % 3 != 1 for position in positions], dtype=torch.bool)
    return (torch.arange(shape[-1]) % 3 != 1).expand(tuple(shape)).clone() if shape else torch.tensor(True)


def scalar(name: str, kind: type, sizes: Sizes) -> float | int | bool | None:
    """A plausible argument for a number without a default; None when the type is not a number."""
    if kind is bool:
        return False
    if kind is float:
        return {"temperature": 1.0, "gamma": 0.9, "lam": 0.9, "gae_lambda": 0.9}.get(name, 0.2)
    return _count(name, sizes) if kind is int else None


def _count(name: str, sizes: Sizes) -> int:
    """Integers such as ``num_samples`` or ``vocab_size`` are the size of a dimension."""
    counted = {"samples": "batch", "sequences": "batch", "segments": "batch", "rows": "batch", "prompts": "groups"}
    stem = name.removeprefix("num_").removeprefix("n_").removesuffix("_size")
    stem = counted.get(stem, stem)
    return next((sizes.named[dim] for dim in (stem, f"{stem}s") if dim in sizes.named), 2)
