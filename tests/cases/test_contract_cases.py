"""Faults of graphs, shapes, devices and dtypes that users of other trainers reported in public, with their numbers."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rollout_contract import (
    Layout,
    Loss,
    OPDBatch,
    PolicyBatch,
    ValueBatch,
    policy_loss,
    settings,
)
from rollout_contract.errors import (
    ContractError,
    DeviceError,
    DTypeError,
    LiveGraphError,
    MaskError,
    NoGraphError,
    RowsError,
    ShapeError,
)
from rollout_contract.objectives import PPOClip, Reinforce
from rollout_contract.schemas import AdvantageBatch, TokenRewardBatch
from tests.cases.steps import NAN, Step, gradient, leaf, policy

# -- 1 to 9: graphs -------------------------------------------------------------------------------------------------


def test_case_001_every_fixed_field_of_a_batch_is_cut_where_it_is_stored() -> None:
    """miles#1966."""
    student, teacher = leaf(-0.5, -1.0), leaf(-0.2, -0.2)
    advantages, mask = leaf(2.0, 2.0) * 1.0, torch.ones(2, requires_grad=True) * 1.0
    batch = OPDBatch(response_lengths=[2], loss_mask=mask, old_log_probs=student * 1.0, teacher_log_probs=teacher * 1.0)
    step = batch.extend(type("Full", (OPDBatch, PolicyBatch), {}), advantages=advantages)
    for name in ("old_log_probs", "teacher_log_probs", "advantages", "loss_mask"):
        assert getattr(step, name).grad_fn is None
        assert not getattr(step, name).requires_grad


def test_case_002_what_was_made_from_live_scores_is_a_constant_in_the_batch() -> None:
    """verl#4105: w = clamp(exp(lp - roll)) from live scores gives [0, +0.6065] where [-1.2214, -0.6065] is right."""
    log_probs, rollout = leaf(-1.0, -2.0), torch.tensor([-1.2, -1.5])
    weights = (log_probs - rollout).exp().clamp(max=2.0)
    wrong = leaf(-1.0, -2.0)
    (-((wrong - rollout).exp().clamp(max=2.0) * wrong)).sum().backward()
    assert wrong.grad is not None
    assert wrong.grad.tolist() == pytest.approx([0.0, 0.6065], abs=1e-4)
    batch = AdvantageBatch(
        response_lengths=[2], loss_mask=[1, 1], advantages=[1.0, 1.0], correction_weights=weights
    ).weighted("sum")
    policy_loss(batch.bind(log_probs=log_probs), Reinforce()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.2214, -0.6065], abs=1e-4)


def test_case_004_old_scores_that_are_the_live_ones() -> None:
    """trl#2769, mlx-lm-lora#49: the gradient would be exactly [0, 0], and the loss the same."""
    log_probs = leaf(-1.0, -2.0)
    assert gradient(policy([1.0, 1.0], [2], old_log_probs=log_probs * 1.0), log_probs) == [-1.0, -1.0]
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        policy([1.0, 1.0], [2], old_log_probs=log_probs * 1.0)
    assert caught.value.field == "old_log_probs"
    legal = leaf(-1.0, -2.0)
    assert gradient(policy([1.0, 1.0], [2], old_log_probs=legal.detach()), legal) == [-1.0, -1.0]


def test_case_005_advantages_that_a_critic_made_serve_every_epoch() -> None:
    """pymarl2#46."""
    values = leaf(0.5, 1.5)
    step = policy(torch.tensor([1.0, 1.0]) - values * 1.0, [2]).weighted("sum")
    for _ in range(3):
        log_probs = leaf(-1.0, -1.0)
        policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
        assert log_probs.grad is not None
        assert log_probs.grad.tolist() == [-0.5, 0.5]
    assert values.grad is None


def test_case_006_scores_made_under_inference_mode() -> None:
    """trl#2953: detach alone leaves an inference tensor."""
    with torch.inference_mode():
        made = torch.ones(2)
        old = torch.zeros(2) - 1.0
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (leaf(-1.0, -1.0).exp() * made.detach()).sum()
    step = policy(made, [2], old_log_probs=old)
    assert not step.advantages.is_inference()
    assert not step.old_log_probs.is_inference()
    for _ in range(2):
        assert gradient(step, leaf(-1.0, -1.0)) == [-1.0, -1.0]
    step.verify()


def test_case_007_metrics_keep_no_graph() -> None:
    """trl#224, OpenRLHF#953."""
    log_probs = leaf(-1.0, -1.2)
    loss = policy_loss(policy([1.0, 1.0], [2]).weighted("sum").bind(log_probs=log_probs), PPOClip())
    assert loss.value.requires_grad
    assert [metric.parts.grad_fn for metric in loss.metrics.values()] == [None] * len(loss.metrics)
    assert len(loss.metrics) > 0


def test_case_009_a_trainable_field_without_a_graph() -> None:
    """SkyRL#1340: under no_grad the loss would have no gradient at all."""
    log_probs = leaf(-1.0, -2.0)
    with torch.no_grad():
        dead = log_probs * 1.0
    with pytest.raises(NoGraphError) as caught:
        policy([1.0, 1.0], [2]).bind(log_probs=dead)
    assert caught.value.field == "log_probs"
    with torch.no_grad():
        assert policy([1.0, 1.0], [2]).bind(log_probs=dead).has("log_probs")


# -- 11 to 18: shapes -----------------------------------------------------------------------------------------------


def test_case_011_advantages_per_sample_are_no_advantages_per_token() -> None:
    """trl 4db63af98: B == T == 2 is silent. Wrong [[-.25, .25], [-.25, .25]], right [[-.25, -.25], [.25, .25]]."""
    with pytest.raises(ShapeError) as caught:
        policy(torch.tensor([1.0, -1.0]), [2, 2])
    assert caught.value.hint.startswith("one value per sample where one per token belongs")
    advantages = Layout([2, 2]).expand(torch.tensor([1.0, -1.0]))
    step = policy(advantages, [2, 2], old_log_probs=torch.zeros(4))
    assert gradient(step, torch.zeros(4, requires_grad=True), "token-mean") == [-0.25, -0.25, 0.25, 0.25]


@pytest.mark.parametrize("lengths", [[1], [1, 1], [3]])
def test_case_011_nor_where_one_sample_or_one_token_would_broadcast(lengths: list[int]) -> None:
    for shape in ([len(lengths), 1], [1, sum(lengths)], []):
        with pytest.raises(ShapeError):
            policy(torch.zeros(shape), lengths)


def test_case_013_a_trailing_dimension_of_one() -> None:
    """pytorch/rl#1243: [3] times [3, 1] is [3, 3], with mean -4.0 where -4.6667 is right."""
    log_probs, advantages = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([[1.0], [2.0], [3.0]])
    assert (log_probs * advantages).mean().item() == pytest.approx(-4.0)
    with pytest.raises(ShapeError) as caught:
        policy(advantages, [3])
    assert caught.value.hint == "a trailing dimension of 1 broadcasts silently: drop it with .squeeze(-1)"
    batch = policy(advantages.squeeze(-1), [3], old_log_probs=log_probs)
    assert (batch.old_log_probs * batch.advantages).mean().item() == pytest.approx(-4.6667, abs=1e-4)


def test_case_017_a_filter_that_forgot_two_fields() -> None:
    """trl#4454: fields of 4, 4, 2 and 2 samples. All wrong ones are named, and select cuts all alike."""
    with pytest.raises(ContractError) as caught:
        Step(
            response_lengths=[1, 1],
            loss_mask=torch.ones(4),
            advantages=torch.ones(4),
            old_log_probs=-torch.ones(2),
            rollout_log_probs=-torch.ones(2),
        )
    assert [(v.field, v.found) for v in caught.value.violations] == [("loss_mask", "bool[4]"), ("advantages", "f32[4]")]
    full = Step(
        response_lengths=[1] * 4,
        loss_mask=[1] * 4,
        advantages=[0.0, 1.0, 2.0, 3.0],
        old_log_probs=[0.0, -1.0, -2.0, -3.0],
        rollout_log_probs=[0.0, -1.0, -2.0, -3.0],
    )
    kept = full.select([3, 1])
    assert kept.advantages.tolist() == [3.0, 1.0]
    assert kept.old_log_probs.tolist() == kept.rollout_log_probs.tolist() == [-3.0, -1.0]


def test_case_018_rows_in_another_order_do_not_combine() -> None:
    """verl#1440: no shape can tell; the rows can."""

    class Critic(TokenRewardBatch, ValueBatch):
        """Rewards, and what the critic says."""

    values = ValueBatch(response_lengths=[2, 2], loss_mask=[1] * 4, values=[1.0] * 4, returns=[0.0] * 4, row_ids=[8, 9])
    rewards = TokenRewardBatch(response_lengths=[2, 2], loss_mask=[1] * 4, token_rewards=[0.0] * 4, row_ids=[9, 8])
    with pytest.raises(RowsError):
        rewards.merge(values, Critic)
    assert rewards.select([1, 0]).merge(values, Critic).row_ids == (8, 9)


# -- 20 to 27: devices and dtypes -----------------------------------------------------------------------------------


def test_case_020_a_field_left_on_another_device() -> None:
    """trl#2584: every wrong field is named with its device, before any arithmetic."""
    with FakeTensorMode(), pytest.raises(DeviceError) as caught:
        PolicyBatch(
            response_lengths=[2],
            loss_mask=torch.ones(2, device="cuda:0"),
            old_log_probs=torch.zeros(2, device="cuda"),
            advantages=torch.zeros(2),
        )
    assert (caught.value.field, caught.value.expected, caught.value.found) == (
        "advantages",
        "cuda:0, where the batch is",
        "cpu",
    )


def test_case_020_a_scalar_on_the_cpu_mixes_silently_and_is_refused() -> None:
    with FakeTensorMode(), pytest.raises(ContractError) as caught:
        PolicyBatch(
            response_lengths=[2],
            loss_mask=torch.ones(2, device="cuda"),
            old_log_probs=torch.zeros(2, device="cuda"),
            advantages=torch.tensor(1.0),
        )
    assert {violation.rule for violation in caught.value.violations} == {"shape", "device"}


def test_case_021_moving_a_batch_never_overlaps_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """tensordict#725, verl#3222: garbage read from a copy that had not arrived."""
    asked: list[Any] = []
    plain = Tensor.to

    def recording(self: Tensor, *args: Any, **options: Any) -> Tensor:
        asked.append(options.get("non_blocking", False) or True in args[1:])
        return plain(self, *args, **options)

    monkeypatch.setattr(Tensor, "to", recording)
    policy([1.0, 1.0], [2]).to("cpu")
    assert asked
    assert not any(asked)


def test_case_023_log_probs_in_half_precision() -> None:
    """slime#245: 1000 tokens of -3.1416 in bfloat16 make a sequence ratio of 0.377 instead of 1."""
    score = torch.tensor([-3.1416, -12.3456])
    half = score.bfloat16()
    assert half.tolist() == [-3.140625, -12.375]
    ratio = (score - half.float()).exp()
    assert ratio.tolist() == pytest.approx([0.99903, 1.0298], abs=1e-4)
    assert math.exp(1000 * float(score[0] - half[0].float())) == pytest.approx(0.377, abs=1e-3)
    for field in ("old_log_probs", "advantages"):
        with pytest.raises(DTypeError) as caught:
            policy(**({"advantages": [1.0, 1.0], "lengths": [2]} | {field: half}))
        assert caught.value.found == "bfloat16"
    with settings(half_precision="upcast"):
        step = policy([1.0, 1.0], [2], old_log_probs=half)
    assert step.old_log_probs.dtype == torch.float32
    assert step.repairs == {"old_log_probs: upcast from bfloat16": 2}


def test_case_026_masks_of_every_dtype_and_nothing_else() -> None:
    """slime 82d3f94a3: masks of ints break mean(), masks of bools break 1 - mask."""
    for mask in ([1, 0, 1], [1.0, 0.0, 1.0], [True, False, True]):
        for made in (mask, torch.tensor(mask), np.array(mask)):
            step = policy([1.0] * 3, [3], loss_mask=made)
            assert step.loss_mask.dtype == torch.bool
            assert (~step.loss_mask).tolist() == [False, True, False]
    for bad in (0.5, 2.0, -1.0, NAN):
        with pytest.raises(MaskError):
            policy([1.0] * 3, [3], loss_mask=torch.tensor([1.0, bad, 0.0]))


def test_case_027_float64_advantages_do_not_promote_the_loss() -> None:
    """Liger#1366: advantages from numpy."""
    step = policy(np.array([1.0, -1.0]), [2]).weighted("token-mean")
    assert step.advantages.dtype == torch.float64
    assert policy_loss(step.bind(log_probs=leaf(-1.0, -1.0)), PPOClip()).value.dtype == torch.float32


# -- 90 and 91: plain objects, tensors without values ---------------------------------------------------------------


def test_case_090_a_batch_is_a_plain_object() -> None:
    """pytorch#177986, conduit#122: to() gives a new one, == is identity, and nothing is set from outside."""
    batch = policy([1.0, 1.0], [2])
    moved = batch.to("meta")
    assert moved is not batch
    assert batch.device.type == "cpu"
    twin = copy.deepcopy(batch)
    assert (batch == twin, batch != twin, batch.allclose(twin)) == (False, True, True)
    assert hash(batch) != hash(pickle.loads(pickle.dumps(batch)))
    with pytest.raises(AttributeError):
        batch.device = torch.device("meta")  # type: ignore[misc]


class _Syncs:
    """Counts the reads of device values by the host."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero"):
            patch.setattr(Tensor, name, self._counting(getattr(Tensor, name)))

    def _counting(self, method: Any) -> Any:
        def counted(tensor: Tensor, *args: Any) -> Any:
            self.count += 1
            return method(tensor, *args)

        return counted


@pytest.mark.parametrize(("level", "reads"), [("off", 0), ("structure", 0), ("values", 1), ("auto", 1)])
def test_case_091_the_host_waits_once_or_never(monkeypatch: pytest.MonkeyPatch, level: Any, reads: int) -> None:
    """pytorch#139092: one fused read for the values of all fields; none for the rest of the life cycle."""
    given: dict[str, Any] = {
        "response_lengths": [2, 1],
        "group_ids": [0, 0],
        "loss_mask": torch.tensor([True, True, False]),
        "old_log_probs": torch.tensor([-1.0, -1.0, NAN]),
        "advantages": torch.ones(3),
    }
    log_probs = leaf(-1.0, -1.0, -1.0)
    syncs = _Syncs(monkeypatch)
    with settings(level=level):
        step = PolicyBatch(**given)
        assert syncs.count == reads
        step = step.weighted("prompt-mean")
        loss: Loss = policy_loss(step.bind(log_probs=log_probs), PPOClip())
        step.split(samples=1)
        step.select([1, 0])
        repr(step)
        assert syncs.count == 2 * reads
    assert loss.value.requires_grad


def test_case_091_tensors_without_values_are_not_looked_at() -> None:
    meta = {"old_log_probs": torch.ones(2, device="meta"), "advantages": torch.ones(2, device="meta")}
    with settings(level="values"):
        batch = PolicyBatch(response_lengths=[2], loss_mask=torch.ones(2, device="meta"), **meta)
        assert batch.weighted("token-mean").loss_weights.device.type == "meta"
        with FakeTensorMode():
            assert (
                PolicyBatch(
                    response_lengths=[2], loss_mask=torch.ones(2), old_log_probs=torch.ones(2), advantages=torch.ones(2)
                ).device.type
                == "cpu"
            )
