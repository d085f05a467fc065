"""What is found, what is not, and why something cannot be checked."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from rollout_contract.check import Report, check

HEAD = """
from __future__ import annotations
from functools import partial
from typing import TYPE_CHECKING, Any
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from rollout_contract import Fixed, KLBatch, Layout, Loss, PolicyBatch, RolloutBatch, Trainable, policy_loss, unbound
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.objectives import PPOClip
if TYPE_CHECKING:
    from somewhere import Batch as MyBatch, Config
"""


class Run(Protocol):
    def __call__(self, text: str, only: Sequence[str] = ()) -> Report: ...


_count = 0


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Check the text of a module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(text: str, only: Sequence[str] = ()) -> Report:
        global _count
        _count += 1
        name = f"discovered_{_count}"
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
        found = check(name, only=only)
        sys.modules.pop(name, None)
        return found

    return run


def names(report: Report) -> list[str]:
    return [name.rpartition(":")[2] for name in report.checked]


def test_what_is_found(report: Run) -> None:
    found = report(
        """
        class Step(PolicyBatch, KLBatch):
            "A schema."

        def by_schema(batch: Step) -> Loss:
            return policy_loss(batch, PPOClip())

        def by_dims(values: Float[Tensor, "tokens"], layout: Layout) -> Float[Tensor, "batch"]:
            return layout.sum(values)

        def _private(batch: Step) -> Loss:
            return by_schema(batch)

        def no_tensors(learning_rate: float) -> float:
            return learning_rate

        def plain_tensor(values: Tensor) -> Tensor:
            return values

        class Callable:
            def __call__(self, batch: KLBatch) -> Loss:
                live = read(batch, "log_probs")
                return weighted_sum(batch, live * read(batch, "ref_log_probs", like=live))

        class Other:
            def method(self, batch: Step) -> Loss:
                return by_schema(batch)

        clip_higher = PPOClip(clip_high=0.28)
        fixed_objective = partial(policy_loss, objective=PPOClip())
        NUMBER = 3
        """
    )
    assert sorted(names(found)) == ["Callable", "Step", "by_dims", "by_schema", "clip_higher", "fixed_objective"]
    assert found.faults == ()
    assert found.unchecked == ()


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        ("batch: KLBatch, model: torch.nn.Linear", "no value for parameter model: Linear: Linear() fails"),
        ("batch: KLBatch, name: str", "no value can be made up for parameter name: str"),
        ("batch: KLBatch, other", "no value can be made up for parameter other"),
        ("batch: KLBatch, weights: Tensor", "the shape of a tensor is not known"),
        ("batch: MyBatch", "an annotation cannot be evaluated at run time (batch: MyBatch)"),
        ("batch: KLBatch, config: Config", "an annotation cannot be evaluated at run time (config: Config)"),
    ],
)
def test_why_a_function_cannot_be_checked(report: Run, signature: str, reason: str) -> None:
    found = report(f"def function({signature}) -> Loss:\n    return weighted_sum(batch, batch.log_probs)\n")
    (unchecked,) = found.unchecked
    assert reason in unchecked.reason
    assert unchecked.place.line == HEAD.count("\n") + 1
    assert found.exit_code == 2


@pytest.mark.parametrize(
    "signature",
    [
        "batch: KLBatch, eps: float, count: int, flag: bool",
        "batch: KLBatch, config: Config | None = None",
        "batch: KLBatch, *, temperature: float",
        "batch: KLBatch, /, mask: Bool[Tensor, 'tokens']",
        "batch: KLBatch, device: torch.device, extra: Any = 1, *args, **kwargs",
    ],
)
def test_what_can_be_made_up(report: Run, signature: str) -> None:
    lines = ["live = read(batch, 'log_probs')", "return weighted_sum(batch, live * read(batch, 'ref_log_probs', live))"]
    body = "\n".join(f"    {line}" for line in lines)
    found = report(f"def function({signature}) -> Loss:\n{body}\n")
    assert found.exit_code == 0, found


def test_a_function_that_depends_on_values_cannot_be_checked_on_fake_tensors(report: Run) -> None:
    found = report(
        """
        def branches(batch: KLBatch) -> Loss:
            live = read(batch, "log_probs")
            if (live.detach() > 0).any():
                raise ValueError
            return weighted_sum(batch, live * read(batch, "ref_log_probs", like=live))
        """
    )
    assert found.faults == ()
    (unchecked,) = found.unchecked
    assert unchecked.reason.startswith("rule device: what it does depends on values of tensors (line ")


def test_a_gradient_on_fake_tensors_does_not_abort_the_process(report: Run) -> None:
    found = report(
        """
        def needs_gradient(values: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
            with torch.enable_grad():
                leaf = values.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(leaf.square().sum(), leaf)
            return gradient
        """
    )
    assert found.faults == ()
    assert "requires a gradient, which fake tensors cannot" in found.unchecked[0].reason


def test_indexing_and_moving_work_on_fake_tensors(report: Run) -> None:
    found = report(
        """
        def indexes(batch: KLBatch, ids: Int[Tensor, "tokens"]) -> Loss:
            live = read(batch, "log_probs")
            kept = live[batch.loss_mask].sum() + live[ids].sum() * 0.0 + live[:0].sum() + live[None].sum() * 0.0
            moved = torch.zeros(2).to(live.device).to(live).sum()
            weights = moved + torch.ones(1).to(device=live.device, dtype=live.dtype)
            buffer = live.new_zeros(len(live))
            buffer[ids] = 1.0
            terms = live * (weights[0] + 0.0 * buffer.sum() + 0.0 * kept.detach())
            return weighted_sum(batch, terms * read(batch, "ref_log_probs", like=live))
        """,
        only=["device"],
    )
    assert found.exit_code == 0, found


def test_a_schema_that_does_not_compile_is_a_fault(report: Run) -> None:
    found = report(
        """
        class Wrong(RolloutBatch):
            untagged: Float[Tensor, "tokens"]
            bad_dims: Fixed[Float[Tensor, "time tokens"]]
        """
    )
    assert {fault.rule for fault in found.faults} == {"schema"}
    assert [fault.expected.partition(":")[0] for fault in found.faults] == ["untagged", "bad_dims"]
    assert {fault.place.line for fault in found.faults} == {HEAD.count("\n") + 2}
    assert found.exit_code == 1


def test_a_schema_with_a_field_that_nobody_can_make_up(report: Run) -> None:
    found = report(
        """
        from rollout_contract import Metadata
        from pydantic import BaseModel

        class Options(BaseModel):
            needed: int

        class Step(KLBatch):
            options: Metadata[Options]

        def uses(batch: Step) -> Loss:
            return weighted_sum(batch, batch.log_probs)
        """
    )
    (unchecked,) = found.unchecked
    assert "no value can be made up for the field Step.options" in unchecked.reason


def test_a_package_is_checked_with_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "discovered_package"
    package.mkdir()
    (package / "__init__.py").write_text("from discovered_package.losses import loss\n")
    body = "def loss(batch: KLBatch) -> Loss:\n    return weighted_sum(batch, read(batch, 'log_probs').detach())\n"
    (package / "losses.py").write_text(HEAD + body)
    (package / "broken.py").write_text("raise RuntimeError('no GPU here')\n")
    found = check("discovered_package", only=["unreached"])
    assert found.checked == ("discovered_package.losses:loss",)
    assert [fault.rule for fault in found.faults] == ["unreached"]
    (unchecked,) = found.unchecked
    assert unchecked.subject == "discovered_package.broken"
    assert unchecked.reason == "import failed: RuntimeError: no GPU here"


def test_a_module_that_exits_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "discovered_exit.py").write_text("raise SystemExit('no')\n")
    assert check("discovered_exit").exit_code == 2


def test_targets_are_not_checked_twice() -> None:
    found = check("tests.check.correct.packed_trainers:truncate", "tests.check.correct.packed_trainers:truncate")
    assert len(found.checked) == 1


def test_an_unbound_method_is_no_function() -> None:
    found = check("rollout_contract.objectives:PPOClip.terms")
    assert found.unchecked[0].reason == "it is a method; give the module an object that is called, or a function"


@pytest.mark.uninstrumented("measures time")
def test_ten_losses_take_less_than_ten_seconds() -> None:
    found = check("rollout_contract.kl")
    assert len(found.checked) >= 9
    assert found.seconds < 10
