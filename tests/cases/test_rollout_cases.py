"""Faults of lengths, frames and missing numbers that users of other trainers reported in public, with their numbers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import rollout_contract
from rollout_contract import (
    Fixed,
    Layout,
    PolicyBatch,
    RolloutBatch,
    Sampling,
    TISBatch,
    policy_loss,
    settings,
)
from rollout_contract.corrections import Truncate
from rollout_contract.errors import (
    LengthError,
    MetadataError,
    MissingFieldError,
    NonFiniteError,
    ShapeError,
)
from rollout_contract.objectives import PPOClip
from tests.cases.steps import NAN, Step, gradient, leaf, policy

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
