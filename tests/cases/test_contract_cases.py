"""Faults at the boundary between rollouts and loss that users of other trainers reported in public.

Graphs, shapes, devices, dtypes, lengths, containers and denominators, with the numbers of the reports.
"""

from __future__ import annotations

import ast
import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import rollout_contract
from rollout_contract import (
    Fixed,
    KLBatch,
    Layout,
    Loss,
    Metadata,
    OPDBatch,
    PolicyBatch,
    RolloutBatch,
    Sampling,
    TISBatch,
    ValueBatch,
    policy_loss,
    settings,
)
from rollout_contract.corrections import Reject, Truncate
from rollout_contract.errors import (
    ContractError,
    DeviceError,
    DTypeError,
    LengthError,
    LiveGraphError,
    MaskError,
    MetadataError,
    MissingFieldError,
    MutatedError,
    NoGraphError,
    NonFiniteError,
    RowsError,
    ShapeError,
)
from rollout_contract.losses.loss import weighted_sum
from rollout_contract.objectives import PPOClip, Reinforce
from rollout_contract.schemas import AdvantageBatch, TokenRewardBatch

NAN = float("nan")


class Step(PolicyBatch, TISBatch):
    """Both kinds of scores, and advantages."""


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def policy(advantages: Any, lengths: list[int], **fields: Any) -> PolicyBatch:
    count = sum(lengths)
    plain: dict[str, Any] = {"loss_mask": torch.ones(count), "old_log_probs": torch.zeros(count) - 1.0}
    return PolicyBatch(response_lengths=lengths, advantages=advantages, **(plain | fields))


def gradient(batch: PolicyBatch, log_probs: Tensor, mode: Any = "sum") -> list[float]:
    policy_loss(batch.weighted(mode).bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    return log_probs.grad.tolist()


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


# -- 29 to 40: lengths, frames, resumed and aborted rollouts --------------------------------------------------------


def test_case_029_a_resumed_rollout_whose_mask_did_not_grow() -> None:
    """slime#1440, slime#2207: 3 old tokens and 2 new ones, but a mask of 3."""
    with pytest.raises(LengthError) as caught:
        policy([[0.0] * 5], [5], loss_mask=[[0, 0, 0]], old_log_probs=[[-1.0] * 5])
    error = caught.value
    assert (error.field, error.row, error.expected, error.found) == ("loss_mask", 0, "5 response tokens", "3 entries")
    assert error.hint == "when a response is resumed, its mask grows with it: one entry for every token, old and new"


def test_case_030_scores_of_the_response_against_tokens_of_the_whole_sequence() -> None:
    """slime#1995: the message says which frame was expected."""

    class Tokens(TISBatch):
        token_ids: Fixed[Float[Tensor, "sequence"]]

    given: dict[str, Any] = {"response_lengths": [4], "prompt_lengths": [2], "loss_mask": [1] * 4}
    scores = [[-1.0] * 4]
    assert Tokens(**given, old_log_probs=scores, rollout_log_probs=scores, token_ids=[[0.0] * 6]).has("token_ids")
    with pytest.raises(LengthError) as caught:
        Tokens(**given, old_log_probs=[[-1.0] * 6], rollout_log_probs=scores, token_ids=[[0.0] * 4])
    assert [(v.field, v.expected, v.found) for v in caught.value.violations] == [
        ("old_log_probs", "4 response tokens", "6 entries"),
        ("token_ids", "6 prompt and response tokens", "4 entries"),
    ]


def test_case_031_scores_that_start_at_the_second_token() -> None:
    """prime-rl#605: two samples of 4 tokens have 3 + 3 scores."""
    for scores in (torch.zeros(6), [[-1.0] * 3, [-1.0] * 3]):
        with pytest.raises((ShapeError, LengthError)) as caught:
            policy(torch.zeros(8), [4, 4], old_log_probs=scores)
        assert "this looks like scores that start at the second token" in caught.value.hint
    joined = PolicyBatch.concat([policy(torch.zeros(4), [4]), policy(torch.zeros(4), [4])])
    assert joined.old_log_probs.shape == (8,)


def test_case_032_the_shift_between_tokens_and_predictions_loses_no_trained_token() -> None:
    """verl#3287: a mask sliced [:, :-1] instead of [:, 1:] trains one token fewer."""
    layout = Layout([2], prompt_lengths=[2])
    of_tokens = torch.tensor([0, 0, 1, 1])
    assert layout.response_from_sequence(of_tokens).tolist() == [1, 1]
    of_predictions = layout.predictions_from_response(torch.tensor([1, 1]))
    assert of_predictions.tolist() == [0, 1, 1, 0]
    assert layout.response_from_predictions(of_predictions).tolist() == [1, 1]
    for sliced in (of_tokens[1:], of_tokens[:-1]):
        with pytest.raises(ShapeError, match="4 entries"):
            layout.response_from_sequence(sliced)


def test_case_034_a_response_is_as_long_as_its_tokens_not_as_its_mask() -> None:
    """slime#1350: mask [0, 1, 1, 0, 0, 1] of prompt 1 and response 5."""
    mask = [1, 1, 0, 0, 1]
    batch = policy([1.0] * 5, [5], loss_mask=[mask])
    assert (batch.layout.num_tokens, int(batch.loss_mask.sum())) == (5, 3)
    with pytest.raises(LengthError):
        policy([[1.0] * 5], [3], loss_mask=[mask])


def test_case_035_an_appended_end_token_was_not_sampled() -> None:
    """SkyRL#758: a placeholder of 0.0 with mask 1 shows in the summary; with mask 0 it is of no interest."""
    scores = torch.tensor([-1.0, -0.5, 0.0])
    trained = policy([1.0] * 3, [3], old_log_probs=scores).summary()
    assert {field.name: field.zeros for field in trained.fields}["old_log_probs"] == 1
    assert "  exactly 0: old_log_probs (1 trained token)" in str(trained).splitlines()
    masked = policy([1.0] * 3, [3], old_log_probs=scores, loss_mask=[1, 1, 0]).summary()
    assert "exactly 0" not in str(masked)


def test_case_037_masks_come_from_lengths_and_never_from_ids() -> None:
    """trl#3200: with pad == eos a mask from ids hides the end token."""
    pad = eos = 2
    padded = torch.tensor([[5, 6, eos, pad], [7, eos, pad, pad]])
    layout = Layout([3, 2])
    assert layout.pack(padded).tolist() == [5, 6, eos, 7, eos]
    assert layout.pad(layout.pack(padded), pad).tolist() == padded[:, :3].tolist()
    batch = RolloutBatch(response_lengths=[3, 2], loss_mask=torch.ones(5))
    assert batch.weighted("sum").loss_weights.tolist() == [1.0] * 5


def test_case_039_padding_has_every_field() -> None:
    """SkyRL#1815: a synthetic micro-batch without rollout_log_probs dropped the field for all."""
    step = Step(
        response_lengths=[2],
        loss_mask=[1, 1],
        advantages=[1.0, 1.0],
        old_log_probs=[-1.0, -1.0],
        rollout_log_probs=[-1.0] * 2,
    ).weighted("token-mean")
    padded = step.pad_to(3)
    for part in padded.split(samples=1):
        assert [part.has(name) for name in ("rollout_log_probs", "old_log_probs", "advantages", "loss_weights")] == [
            True
        ] * 4
    assert padded.row_ids[1:] == (-1, -1)
    assert Step.concat(padded.split(samples=1)).rollout_log_probs.tolist() == [-1.0, -1.0]


def test_case_039_a_field_that_some_rows_lack() -> None:
    """tunix#2339."""
    with pytest.raises(MissingFieldError) as caught:
        policy([[1.0], None, [1.0]], [1, 1, 1])
    assert (caught.value.field, caught.value.found, caught.value.row) == ("advantages", "no value in rows [1]", 1)
    assert policy([[1.0], [], [1.0]], [1, 0, 1]).advantages.tolist() == [1.0, 1.0]


def test_case_040_checks_come_from_the_schema() -> None:
    """prime-rl#1634: the validator knew the old fields, but not the new one."""

    class Mine(PolicyBatch):
        teacher_log_probs: Fixed[Float[Tensor, "tokens"]]

    given: dict[str, Any] = {
        "response_lengths": [2],
        "loss_mask": [1, 1],
        "old_log_probs": [-1.0] * 2,
        "advantages": [1.0] * 2,
    }
    for value, kind in ((torch.zeros(3), ShapeError), ([[-1.0]], LengthError), ([NAN, -1.0], NonFiniteError)):
        with pytest.raises(kind) as caught:
            Mine(**given, teacher_log_probs=value)
        assert caught.value.field == "teacher_log_probs"
    with pytest.raises(MissingFieldError):
        Mine(**given)


def test_case_040_no_check_is_an_assert_statement() -> None:
    """xtuner#2003: asserts vanish under python -O."""
    root = Path(rollout_contract.__file__).parent
    folders = [root / "schema", root / "losses", root / "objectives", root / "corrections"]
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.glob("*.py"))]
    assert len(files) > 30
    for file in files:
        tree = ast.parse(file.read_text())
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], file.name


# -- 44 and 46: missing numbers, nothing to train -------------------------------------------------------------------


def test_case_044_none_in_a_list_of_scores() -> None:
    """trl#6166, miles#2662: roll = [-0.5, None, -0.7]."""
    given: dict[str, Any] = {"response_lengths": [3], "loss_mask": [1, 1, 1], "old_log_probs": [[-0.5, -0.6, -0.7]]}
    with pytest.raises(NonFiniteError) as caught:
        TISBatch(**given, rollout_log_probs=[[-0.5, None, -0.7]])
    assert (caught.value.field, caught.value.row, caught.value.position) == ("rollout_log_probs", 0, 1)
    with settings(missing="mask_out"):
        masked = TISBatch(**given, rollout_log_probs=[[-0.5, None, -0.7]])
    assert masked.weighted("token-mean").loss_weights.tolist() == [0.5, 0.0, 0.5]
    assert masked.repairs == {"rollout_log_probs: missing, masked out": 1}
    with settings(missing="neutral"):
        neutral = TISBatch(**given, rollout_log_probs=[[-0.5, None, -0.7]])
    weights = Truncate()(neutral).weights
    assert weights is not None
    assert weights.tolist() == [1.0, 1.0, 1.0]
    assert neutral.repairs == {"rollout_log_probs: missing, set to old_log_probs": 1}


def test_case_046_nothing_to_train_is_zero_with_a_graph() -> None:
    """slime 82d3f94a3, verl#782, miles#683: no 0/0, and backward runs on every rank."""
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "sum"):
        log_probs = leaf(-1.0, -2.0, -3.0)
        step = policy([1.0] * 3, [2, 1], loss_mask=[0, 0, 0])
        assert gradient(step, log_probs, mode) == [0.0, 0.0, 0.0]
        loss = policy_loss(step.weighted(mode).bind(log_probs=leaf(-1.0, -2.0, -3.0)), PPOClip())
        assert (loss.value.item(), loss.value.requires_grad) == (0.0, True)


# -- 54 to 59: denominators -----------------------------------------------------------------------------------------


def total(batch: RolloutBatch, terms: Tensor) -> float:
    """The loss of given token losses."""
    return weighted_sum(batch, terms).value.item()


def of_mask(mask: list[list[int]]) -> RolloutBatch:
    return RolloutBatch(response_lengths=[len(row) for row in mask], loss_mask=mask)


def test_case_054_the_mean_is_over_the_whole_step() -> None:
    """prime-rl#2358, SkyRL#1296: one token of loss 1, then three of loss 0. Wrong 0.5, right 0.25."""
    terms = torch.tensor([1.0, 0.0, 0.0, 0.0])
    step = of_mask([[1], [1, 1, 1]])
    means = [
        total(of_mask([[1]]).weighted("token-mean"), terms[:1]),
        total(of_mask([[1] * 3]).weighted("token-mean"), terms[1:]),
    ]
    assert sum(means) / 2 == 0.5
    weighted = step.weighted("token-mean")
    assert total(weighted, terms) == 0.25
    first, second = weighted.split(samples=1)
    assert total(first, terms[:1]) + total(second, terms[1:]) == 0.25


def test_case_055_the_name_of_a_mode_is_its_formula() -> None:
    """verl#931: seq-mean-token-sum of [[1, 1, 1, 1], [1, 0, 0, 0]]: right 2.5, wrong 1.0."""
    batch, ones = of_mask([[1, 1, 1, 1], [1, 0, 0, 0]]), torch.ones(8)
    assert total(batch.weighted("seq-mean-token-sum"), ones) == 2.5
    assert total(batch.weighted("token-mean"), ones) == pytest.approx(1.0)
    assert total(batch.weighted("seq-mean-token-mean"), ones) == 1.0


def test_case_056_tool_tokens_do_not_count() -> None:
    """slime#365: the count is that of the mask, never that of the lengths."""
    batch = of_mask([[1, 0, 0, 1], [1, 1]])
    assert batch.weighted("token-mean").loss_weights.tolist() == [0.25, 0.0, 0.0, 0.25, 0.25, 0.25]


def test_case_058_rejected_tokens_leave_the_denominator() -> None:
    """verl#3915: kept ratios sum to 2.455; wrong 2.455 / 5 = 0.491, right 2.455 / 2 = 1.2275."""
    log_ratios = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    rollout = torch.full((5,), -12.0)
    step = TISBatch(
        response_lengths=[5], loss_mask=[1] * 5, old_log_probs=rollout + log_ratios, rollout_log_probs=rollout
    )
    # Of the report's five, e^0.8 = 2.2255 lies outside [0.5, 2] as well.
    kept = step.corrected((Truncate(high=None) & Reject(low=0.5, high=2.0))(step)).weighted("token-mean")
    assert kept.loss_mask.tolist() == [True, False, False, False, True]
    terms = log_ratios.exp() * kept.loss_mask
    assert terms.sum().item() == pytest.approx(2.455, abs=1e-3)
    assert weighted_sum(kept, torch.ones(5), correction="multiplies").value.item() == pytest.approx(1.2275, abs=1e-4)


def test_case_059_a_masked_completion_leaves_the_denominator() -> None:
    """trl#6439: two completions of 4 tokens, the second truncated and masked: 4 trained tokens, not 8."""
    batch = of_mask([[1] * 4, [0] * 4])
    assert batch.weighted("token-mean").loss_weights.tolist() == [0.25] * 4 + [0.0] * 4
    assert total(batch.weighted("seq-mean-token-mean"), torch.ones(8)) == 1.0


# -- 64 and 65: how scores were made, and whether they are there ----------------------------------------------------


def test_case_064_raw_and_processed_scores_do_not_make_a_ratio() -> None:
    """trl#4159, verl#6240: logits [2, 1, 0], token 0, T = 0.6."""
    logits, heat = torch.tensor([2.0, 1.0, 0.0]), 0.6
    raw, processed = logits.log_softmax(0)[0], (logits / heat).log_softmax(0)[0]
    assert (raw.item(), processed.item()) == (pytest.approx(-0.4076, abs=1e-4), pytest.approx(-0.2026, abs=1e-4))
    assert (raw / heat).item() == pytest.approx(-0.6793, abs=1e-4)
    assert (raw - processed).exp().item() == pytest.approx(0.815, abs=1e-3)
    given: dict[str, Any] = {
        "response_lengths": [1],
        "loss_mask": [1],
        "old_log_probs": raw.reshape(1),
        "rollout_log_probs": processed.reshape(1),
    }
    sampled = Sampling(temperature=heat)
    for other in (Sampling(temperature=heat, log_probs="raw"), Sampling(), Sampling(temperature=heat, top_p=0.9)):
        with pytest.raises(MetadataError) as caught:
            TISBatch(**given, sampling={"old_log_probs": other, "rollout_log_probs": sampled})
        assert caught.value.field == "rollout_log_probs"
    TISBatch(**given, sampling={"old_log_probs": sampled, "rollout_log_probs": sampled})


def test_case_064_a_temperature_of_zero_makes_no_scores() -> None:
    """slime#2297."""
    for heat in (0.0, -1.0):
        with pytest.raises(MetadataError):
            policy([1.0], [1], sampling={"old_log_probs": {"temperature": heat}})


@pytest.mark.parametrize("nothing", [None, [], [None, None]])
def test_case_065_nothing_is_missing_only_where_it_is_needed(nothing: Any) -> None:
    """SkyRL#917, slime#942: None, an empty list and rows of None are the same absence."""
    plain = policy([1.0, 1.0], [1, 1])
    assert gradient(plain, leaf(-1.0, -1.0)) == [-1.0, -1.0]
    with pytest.raises(MissingFieldError) as caught:
        plain.extend(Step, rollout_log_probs=nothing)
    assert (caught.value.field, caught.value.found) == ("rollout_log_probs", "nothing")


# -- 79 to 84: containers and aliases -------------------------------------------------------------------------------


def test_case_079_an_expanded_advantage() -> None:
    """NeMo-RL#2787: one write would hit the whole row."""
    expanded = torch.tensor([[1.0], [2.0]]).expand(2, 3)
    batch = type("Two", (RolloutBatch,), {"__annotations__": {"x": Fixed[Float[Tensor, "batch three"]]}})(
        response_lengths=[1, 1], loss_mask=[1, 1], x=expanded
    )
    batch.x[0, 1] = -9.0
    assert batch.x.tolist() == [[1.0, -9.0, 1.0], [2.0, 2.0, 2.0]]
    assert expanded.tolist() == [[1.0] * 3, [2.0] * 3]


def test_case_080_a_stored_tensor_that_is_edited_later() -> None:
    """slime#2114: k *= coef; k[-1] += r edited the stored KL."""
    kl = torch.tensor([1.0, 1.0])
    batch = KLBatch(response_lengths=[2], loss_mask=[1, 1], ref_log_probs=-kl)
    stored = batch.ref_log_probs
    stored *= -0.1
    stored[-1] += 5.0
    with pytest.raises(MutatedError) as caught:
        batch.weighted("token-mean")
    assert caught.value.field == "ref_log_probs"
    assert caught.value.found.endswith("edits in place since then")


def test_case_082_metadata_that_differs_is_no_detail() -> None:
    """verl#3699: concat kept the first shard's."""

    class Noted(PolicyBatch):
        note: Metadata[float]

    def noted(value: float) -> Noted:
        return policy([1.0], [1]).extend(Noted, note=value)

    with pytest.raises(MetadataError):
        Noted.concat([noted(1.0), noted(2.0)])
    assert math.isnan(Noted.concat([noted(NAN), noted(float("nan"))]).note)


def test_case_082_every_index_gives_a_batch() -> None:
    """verl#2766."""
    batch = policy([1.0, 2.0, 3.0], [1, 1, 1])
    for part, expected in (
        (batch[1], [2.0]),
        (batch[-1], [3.0]),
        (batch[0:2], [1.0, 2.0]),
        (batch[torch.tensor([True, False, True])], [1.0, 3.0]),
        (batch[np.array([2, 0])], [3.0, 1.0]),
        (batch[np.int64(1)], [2.0]),
    ):
        assert type(part) is PolicyBatch
        assert part.advantages.tolist() == expected
        assert type(len(part)) is int
        assert all(type(length) is int for length in part.response_lengths)


def test_case_084_arrays_that_cannot_be_written() -> None:
    """ray#12789: torch would share them writably."""
    array = np.frombuffer(np.ones(2, dtype=np.float32).tobytes(), dtype=np.float32)
    batch = policy(array, [2])
    batch.advantages.mul_(3.0)
    assert array.tolist() == [1.0, 1.0]
    rows = policy([array[:1], array[1:]], [1, 1])
    rows.advantages.mul_(3.0)
    assert array.tolist() == [1.0, 1.0]


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
