"""A loss function that nobody can call with inputs that were not validated."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rollout_contract import Loss, PolicyBatch, settings
from rollout_contract.boundary import MILES, PLAIN, PersistedBatch, contract
from rollout_contract.errors import LiveGraphError, MissingFieldError, NoGraphError, SchemaError, ShapeError
from tests.boundary.dicts import live, miles_dict, rows

MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
OLD = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -3.0, -1.5]])
ADVANTAGES = torch.tensor([[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]])


@contract(PolicyBatch)
def surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, loss_mask: Tensor, scale: float = 1.0
) -> tuple[Tensor, dict[str, Any]]:
    """The unclipped surrogate."""
    ratio = (log_probs - old_log_probs).exp()
    loss = -(ratio * advantages * loss_mask).sum() * scale
    return loss, {"loss": loss, "ratio": ratio, "nested": [{"old": old_log_probs}], "count": 5}


def policy() -> Tensor:
    return (OLD - 0.1).requires_grad_()


# -- tensors as parameters -----------------------------------------------------------------------------------------


def test_a_live_old_policy_no_longer_cancels_the_gradient() -> None:
    log_probs = policy()
    loss, metrics = surrogate(log_probs, log_probs * 1.0, ADVANTAGES, loss_mask=MASK)
    loss.backward()
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad, -ADVANTAGES * MASK)
    bare, reference = surrogate.__wrapped__, policy()  # type: ignore[attr-defined]
    bare(reference, reference * 1.0, ADVANTAGES, loss_mask=MASK)[0].backward()
    assert reference.grad is not None
    assert not reference.grad.any(), "without the contract the gradient is zero, and the loss the same"
    assert metrics["nested"][0]["old"].requires_grad is False


def test_arguments_reach_the_function_as_they_were_if_nothing_was_wrong() -> None:
    seen: dict[str, Any] = {}

    @contract(PolicyBatch)
    def spy(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor, tag: object) -> Tensor:
        seen.update(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages, mask=loss_mask, tag=tag)
        return log_probs.sum()

    given, tag = policy(), object()
    spy(given, OLD, ADVANTAGES, MASK, tag)
    assert seen["log_probs"] is given
    assert seen["old_log_probs"] is OLD
    assert seen["mask"] is MASK
    assert seen["tag"] is tag


def test_a_policy_without_a_graph_is_refused_while_gradients_are_recorded() -> None:
    with pytest.raises(NoGraphError, match="log_probs"):
        surrogate(OLD, OLD, ADVANTAGES, loss_mask=MASK)
    with torch.no_grad():
        surrogate(OLD, OLD, ADVANTAGES, loss_mask=MASK)


def test_violations_are_reported_under_the_fields_names() -> None:
    with pytest.raises(ShapeError, match=r"advantages \[shape\]"):
        surrogate(policy(), OLD, torch.ones(3, 3), loss_mask=MASK)
    with pytest.raises(MissingFieldError, match="old_log_probs"):
        surrogate(policy(), None, ADVANTAGES, loss_mask=MASK)  # type: ignore[arg-type]
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match="old_log_probs"):
        surrogate(policy(), policy(), ADVANTAGES, loss_mask=MASK)


def test_wrong_calls_stay_type_errors() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        surrogate(policy())  # type: ignore[call-arg]


def test_parameters_under_other_names_and_keyword_parameters() -> None:
    names = PLAIN.but(fields={"old_log_probs": "prev", "loss_mask": "mask"})

    @contract(PolicyBatch, names)
    def loss(log_probs: Tensor, mask: Tensor, **scores: Any) -> Tensor:
        assert scores["other"] == 1
        return -((log_probs - scores["prev"]).exp() * scores["advantages"] * mask).sum()

    log_probs = policy()
    loss(log_probs, MASK, prev=log_probs * 1.0, advantages=ADVANTAGES, other=1).backward()
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad, -ADVANTAGES * MASK)


def test_methods_and_packed_tensors() -> None:
    class Trainer:
        scale = 2.0

        @contract(PolicyBatch)
        def loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
            assert not old_log_probs.requires_grad
            return -((log_probs - old_log_probs).exp() * advantages * loss_mask).sum() * self.scale

    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    Trainer().loss(log_probs, log_probs * 1.0, torch.ones(2), torch.ones(2)).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-2.0, -2.0]


# -- the dict of a trainer -----------------------------------------------------------------------------------------


@contract(PersistedBatch, MILES, argument="batch")
def miles_loss(args: object, batch: dict[str, Any], log_probs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    batch["seen"] = True
    loss = -((log_probs - torch.cat(batch["log_probs"])).exp() * torch.cat(batch["advantages"])).sum()
    return loss, {"loss": loss}


def test_the_dict_is_put_right_and_the_function_may_write_into_it() -> None:
    data = miles_dict(log_probs=live(rows()), advantages=live(rows(1.0)))
    log_probs = torch.cat(rows()).requires_grad_()
    loss, metrics = miles_loss(None, data, log_probs)
    loss.backward()
    assert data["seen"]
    assert not data["log_probs"][0].requires_grad
    assert log_probs.grad is not None
    assert torch.allclose(log_probs.grad, -torch.cat(rows(1.0)))
    assert not metrics["loss"].requires_grad


def test_the_dict_as_a_keyword() -> None:
    data = miles_dict(values=live(rows()))
    miles_loss(args=None, batch=data, log_probs=torch.cat(rows()).requires_grad_())
    assert not data["values"][0].requires_grad


# -- what a loss function returns ----------------------------------------------------------------------------------


class Named(NamedTuple):
    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass
class Outputs:
    loss: Tensor
    metrics: dict[str, Tensor]


def returning(kind: str) -> Any:
    @contract(PolicyBatch)
    def loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Any:
        value, metric = log_probs.sum(), log_probs.mean()
        outputs: dict[str, Any] = {
            "tensor": value,
            "tuple": (value, {"m": metric}, [metric]),
            "named": Named(value, {"m": metric}),
            "dict": {"loss": value, "m": metric},
            "dataclass": Outputs(value, {"m": metric}),
            "loss": Loss(value),
            "clean": (value, {"m": metric.detach()}),
            "nothing": None,
        }
        return outputs[kind]

    return loss(policy(), OLD, ADVANTAGES, MASK)


def live_tensors(output: Any) -> int:
    if isinstance(output, Tensor):
        return int(output.requires_grad)
    if isinstance(output, Mapping):
        return sum(map(live_tensors, output.values()))
    if isinstance(output, tuple | list):
        return sum(map(live_tensors, output))
    return live_tensors(vars(output)) if isinstance(output, Outputs | Loss) else 0


@pytest.mark.parametrize("kind", ["tensor", "tuple", "named", "dict", "dataclass", "loss", "clean"])
def test_only_the_loss_comes_back_live(kind: str) -> None:
    output = returning(kind)
    assert live_tensors(output) == 1
    loss = output if kind == "tensor" else output["loss"] if kind == "dict" else output
    loss = loss[0] if isinstance(loss, tuple) else loss
    value = loss if isinstance(loss, Tensor) else loss.value if isinstance(loss, Loss) else loss.loss
    assert value.requires_grad


def test_outputs_keep_their_type() -> None:
    assert isinstance(returning("named"), Named)
    assert isinstance(returning("dataclass"), Outputs)
    assert returning("nothing") is None


# -- the signature -------------------------------------------------------------------------------------------------


def test_the_signature_stays_as_it_was() -> None:
    bare = surrogate.__wrapped__  # type: ignore[attr-defined]
    assert inspect.signature(surrogate) == inspect.signature(bare)
    assert surrogate.__name__ == "surrogate"
    assert surrogate.__doc__ == "The unclipped surrogate."
    assert surrogate.__annotations__ == bare.__annotations__


def test_a_function_without_any_field_is_refused_when_it_is_decorated() -> None:
    with pytest.raises(SchemaError, match="argument="):

        @contract(PolicyBatch)
        def loss(batch: dict[str, Any]) -> Tensor:
            return torch.zeros(())

    with pytest.raises(SchemaError, match=r"data \[schema\]"):

        @contract(PolicyBatch, argument="data")
        def other(batch: dict[str, Any]) -> Tensor:
            return torch.zeros(())


TYPED = """
import torch
from torch import Tensor
from typing import assert_type
from rollout_contract import PolicyBatch
from rollout_contract.boundary import MILES, PersistedBatch, contract, guard

@contract(PolicyBatch)
def loss(log_probs: Tensor, old_log_probs: Tensor, *, loss_mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    return log_probs.sum(), {}

t = torch.ones(2)
assert_type(loss(t, t, loss_mask=t), tuple[Tensor, dict[str, float]])
assert_type(guard({"a": 1}, PersistedBatch, MILES), PersistedBatch)
loss(t, t)  # wrong
loss(t, 3, loss_mask=t)  # wrong
loss(t, t, mask=t)  # wrong
"""


def test_a_type_checker_sees_the_signature(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    wrong = {number for number, line in enumerate(TYPED.splitlines(), 1) if "# wrong" in line}
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}
    assert found == wrong, output
