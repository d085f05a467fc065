"""The losses of the parts of a step add up to the loss of the step, with its gradient and its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from rollout_contract.check.failure import failure, show_error
from rollout_contract.check.lines import line_of_error
from rollout_contract.check.outcome import Outcome
from rollout_contract.check.probe import Finding, Probe
from rollout_contract.check.setup import Setup
from rollout_contract.check.sizes import FIRST
from rollout_contract.losses.loss import Loss

EXPLAINS = ("permutation",)

Rows: TypeAlias = tuple[tuple[int, ...], ...]


def find(probe: Probe) -> Iterator[Finding]:
    found = failure(probe)
    if found is not None and found.rule == "split":
        yield found.finding
    if not applies(probe):
        return
    setup = probe.setup(FIRST, floats="float64")
    for samples in (1, 2):
        for name, whole, parts in differences(probe, setup, cuts(probe, samples)):
            yield _finding(probe, name, whole, parts)
            return


def _finding(probe: Probe, name: str, whole: str, parts: str | BaseException) -> Finding:
    hint = "use the batch's loss_weights, which are computed from the whole step before it is split"
    if isinstance(parts, BaseException):
        place = probe.at(line_of_error(parts, probe.subject.home))
        return Finding(place, "a result for a part of a step", show_error(parts), hint)
    expected = f"the same {name} however the step is split"
    return Finding(probe.subject.place, expected, f"{whole} as a whole, {parts} from its parts", hint)


def applies(probe: Probe) -> bool:
    """Whether the function says that the losses of parts add up."""
    subject = probe.subject
    if not (subject.declared and subject.splittable and probe.runs) or probe.first.loss is None:
        return False
    return bool(probe.first.inputs.num_rows) and not probe.is_random


def cuts(probe: Probe, samples: int) -> Rows:
    """Parts of so many samples of the first input."""
    count = probe.first.inputs.num_rows or 0
    return tuple(tuple(range(start, min(start + samples, count))) for start in range(0, count, samples))


def differences(probe: Probe, setup: Setup, parts: Rows) -> list[tuple[str, str, str | BaseException]]:
    """What the whole and the sum of its parts disagree about: its name, and both numbers."""
    return probe.once(("split", setup, parts), lambda: list(_differences(probe, setup, parts)))


def _differences(probe: Probe, setup: Setup, rows: Rows) -> Iterator[tuple[str, str, str | BaseException]]:
    whole = probe.run(setup)
    parts, _ = probe.run_rows(setup, rows)
    wrong = next((part.error for part in parts if part.error is not None), None)
    if wrong is not None or whole.error is not None:
        yield "loss", "a number", wrong or whole.error or RuntimeError("no result")
        return
    yield from _numbers(whole, parts)
    yield from _metrics(whole, parts)


def _numbers(whole: Outcome, parts: Sequence[Outcome]) -> Iterator[tuple[str, str, str]]:
    """Loss and gradients; the parts were cut from one input, so their gradients are for the same leaves."""
    losses = [part.loss for part in parts if part.loss is not None]
    if whole.loss is None or len(losses) != len(parts):
        return
    total = torch.stack([loss.detach() for loss in losses]).sum()
    if not _close(whole.loss.detach(), total):
        yield "loss", f"{whole.loss.item():.6g}", f"{total.item():.6g}"
    for name, gradient in whole.gradients.items():
        pieces = [part.gradients[name] for part in parts if part.gradients.get(name) is not None]
        if gradient is None or not pieces:
            continue
        added = torch.stack([piece for piece in pieces if piece is not None]).sum(0)
        if not _close(gradient, added):
            yield f"gradient of {name}", f"norm {gradient.norm():.6g}", f"norm {added.norm():.6g}"


def _metrics(whole: Outcome, parts: Sequence[Outcome]) -> Iterator[tuple[str, str, str]]:
    """Metrics of a Loss are promised to merge."""
    results = [part.result for part in parts]
    if not isinstance(whole.result, Loss) or not all(isinstance(result, Loss) for result in results):
        return
    merged = results[0].metrics
    for result in results[1:]:
        merged = merged.merge(result.metrics)
    mine, other = whole.result.metrics.compute(), merged.compute()
    for name, number in mine.items():
        if not _close(torch.tensor(number), torch.tensor(other.get(name, float("nan")))):
            yield f"metric {name}", f"{number:.6g}", f"{other.get(name)}"


def _close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right.to(left), rtol=1e-6, atol=1e-9, equal_nan=True)
