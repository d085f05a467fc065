"""Running a function on fake CUDA tensors: they have a device and a shape, and no values.

No GPU is needed. Nothing may require a gradient there: a build of torch without CUDA aborts the process when autograd
looks for the device of a fake tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only

from rollout_contract.check.execute import quiet
from rollout_contract.check.failure import show_error
from rollout_contract.check.findings import CannotCheckError
from rollout_contract.check.inputs import make_inputs
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.sizes import FIRST
from rollout_contract.check.watch import Watch
from rollout_contract.configuration import settings

_DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
)
_NO_CUDA = "not linked with support for"
_TWO_DEVICES = ("same device", "two devices", "on different devices", "same device", "device mismatch")


class _WithoutCuda(TorchFunctionMode):
    """Lets the few operations that ask for a CUDA runtime work on fake tensors without one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "requires_grad_" or kwargs.get("requires_grad"):
            raise CannotCheckError("it makes a tensor that requires a gradient, which fake tensors cannot")
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if _NO_CUDA not in str(error):
                raise
            return _by_way_of_cpu(func, args, kwargs)


def _by_way_of_cpu(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The shape of a result from fake CPU tensors, put back on the fake GPU."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    is_index = getattr(func, "__name__", "") in ("__getitem__", "__setitem__")
    devices = {tensor.device for tensor in tensors if tensor.dim() and not (is_index and not _is_float(tensor))}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {names}")
    home = tensors[0].device
    if getattr(func, "__name__", "") in ("to", "cuda"):
        return _moved(args[0], [*args[1:], *kwargs.values()] if func is not Tensor.cuda else ["cuda"])
    cpu_args, cpu_kwargs = tree_map_only(Tensor, _on_cpu, (args, kwargs))
    result = func(*cpu_args, **cpu_kwargs)
    return tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device=home), result)


def _moved(tensor: Tensor, targets: Sequence[Any]) -> Tensor:
    """``tensor.to(...)`` with a device, a dtype or another tensor, in any order."""
    device, dtype = tensor.device, tensor.dtype
    for target in targets:
        if isinstance(target, torch.dtype):
            dtype = target
        elif isinstance(target, Tensor):
            device, dtype = target.device, target.dtype
        elif isinstance(target, str | torch.device):
            device = torch.device(target)
    return torch.empty_like(tensor, device=device, dtype=dtype)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


def _on_cpu(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu")


def on_fake_cuda(probe: Probe) -> Finding | None:
    """What breaks the rule that results lie where the batch lies.

    Raises:
        CannotCheckError: the function looks at values, which fake tensors do not have.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with quiet(), settings(level="structure"), torch.no_grad(), mode, _WithoutCuda():
        inputs = make_inputs(probe.subject.parameters, probe.setup(FIRST, device="cuda"))
        positional, keyword = inputs.call_arguments()
        try:
            result = probe.subject.call(*positional, **keyword)
        except CannotCheckError:
            raise
        except Exception as error:
            return _of_error(probe, error)
        return next(_strayed(probe, Outcome(inputs, result, None, Watch({}, ""))), None)


def _of_error(probe: Probe, error: Exception) -> Finding:
    place = line_of_error(error, probe.subject.home)
    if any(words in str(error) for words in _TWO_DEVICES):
        hint = "make new tensors from existing ones (new_zeros, torch.zeros(..., device=x.device)); read() moves fields"
        return Finding(probe.at(place), "one device in every operation", _shorten(error), hint)
    where = f" (line {place.line})" if place is not None else ""
    if isinstance(error, _DATA_DEPENDENT):
        raise CannotCheckError(f"what it does depends on values of tensors{where}, which a fake tensor does not have")
    raise CannotCheckError(f"on fake CUDA tensors it raises {show_error(error)}{where}")


def _shorten(error: Exception) -> str:
    text = show_error(error)
    start = text.find("found")
    return text[start:].removeprefix("found ") if start >= 0 else text


def _strayed(probe: Probe, outcome: Outcome) -> Iterator[Finding]:
    found = {"the loss": outcome.loss} if outcome.loss is not None else {}
    for name, tensor in {**found, **outcome.values}.items():
        if tensor.device.type != "cuda":
            shown = "the result" if name == "result" else name
            yield Finding(probe.subject.place, f"{shown} on cuda:0, where the batch is", str(tensor.device))
