"""Running a function on synthetic input."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Generator

import torch

from rollout_contract.check.inputs import Inputs
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.watch import Watch, changed
from rollout_contract.configuration import settings


@contextlib.contextmanager
def quiet(secret: bool = False) -> Generator[None]:
    """The surroundings of every run: nothing printed to stdout, no warnings, and settings that are ours.

    While fixed inputs secretly carry a graph, the seals that would find it are off.
    """
    with (
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
        settings(level="off" if secret else "values", live_inputs="cut", missing="refuse", half_precision="refuse"),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def uncompiled() -> Generator[None]:
    """Run compiled functions as they were written: compiling for a dozen shapes would take minutes."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def _seeded(seed: int) -> Generator[None]:
    """The CPU generators alone: ``torch.manual_seed`` asks every backend, which is slower than the run itself."""
    states = torch.get_rng_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])


def execute(call: Callable[..., object], inputs: Inputs, home: str, *, seed: int = 0, watched: bool = False) -> Outcome:
    """Call a function and note what it returned or raised; with ``watched``, also what it did on the way."""
    tensors = {name: given.tensor for name, given in inputs.tensors.items()}
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()} if watched else {}
    positional, keyword = inputs.call_arguments()
    watch = Watch(tensors, home)
    result, error = None, None
    with quiet(inputs.setup.secret), _seeded(seed):
        try:
            with watch if watched else contextlib.nullcontext():
                result = call(*positional, **keyword)
        except (Exception, SystemExit) as raised:
            error = raised
    return Outcome(inputs, result, error, watch, tuple(changed(before, tensors)))
