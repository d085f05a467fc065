"""Log-probs that an engine could not give: refused with their place, masked out, or neutralised; and counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, PolicyBatch, RolloutBatch, TISBatch, policy_loss, settings, unbound
from rollout_contract.corrections import Truncate
from rollout_contract.errors import ContractError, CorrectionError, MissingFieldError, NonFiniteError
from rollout_contract.objectives import PPOClip
from tests.schema.batches import LENGTHS, MASK, NAN, OLD, FullBatch, live, policy_batch

ROLLOUT = [-1.5, None, -0.5, None, -1.0]
"""One value is missing on a trained token, one where the mask is off."""


def as_rows(values: list[Any]) -> list[list[Any]]:
    return [values[:2], values[2:]]


def as_nan(values: list[Any], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([NAN if value is None else value for value in values], dtype=dtype)


FORMS: dict[str, Any] = {
    "rows": as_rows(ROLLOUT),
    "flat": ROLLOUT,
    "nan tensor": as_nan(ROLLOUT),
    "nan float64": as_nan(ROLLOUT, torch.float64),
    "nan rows": [as_nan(row) for row in as_rows(ROLLOUT)],
    "rows of scalar tensors": [[None if x is None else torch.tensor(x) for x in row] for row in as_rows(ROLLOUT)],
    "mixed rows": [ROLLOUT[:2], as_nan(ROLLOUT[2:])],
}
EVERY_FORM = pytest.mark.parametrize("value", FORMS.values(), ids=[name.replace(" ", "_") for name in FORMS])


def tis_batch(**changes: Any) -> TISBatch:
    plain = {"response_lengths": LENGTHS, "loss_mask": MASK, "old_log_probs": torch.tensor(OLD)}
    return TISBatch(**(plain | {"rollout_log_probs": FORMS["rows"]} | changes))


@EVERY_FORM
def test_refused_with_sample_and_position(value: Any) -> None:
    with pytest.raises(NonFiniteError) as caught:
        tis_batch(rollout_log_probs=value)
    error = caught.value
    assert (error.field, error.row, error.position) == ("rollout_log_probs", 0, 1)
    assert error.found in ("None", "nan")
    assert "mask_out" in error.hint


@EVERY_FORM
def test_masked_out(value: Any) -> None:
    with settings(missing="mask_out"):
        batch = tis_batch(rollout_log_probs=value)
    assert batch.loss_mask.tolist() == [True, False, True, False, True]
    assert torch.isfinite(batch.rollout_log_probs).all()
    assert batch.repairs == {"rollout_log_probs: missing, masked out": 1}
    assert batch.weighted("token-mean").loss_weights.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])


@EVERY_FORM
def test_neutralised(value: Any) -> None:
    with settings(missing="neutral"):
        batch = tis_batch(rollout_log_probs=value)
    assert batch.loss_mask.tolist() == [True, True, True, False, True]
    assert batch.rollout_log_probs.tolist() == [-1.5, OLD[1], -0.5, OLD[3], -1.0]
    assert batch.repairs == {"rollout_log_probs: missing, set to old_log_probs": 1}
    weights = Truncate(high=100.0)(batch).weights
    assert weights is not None
    assert weights[1] == 1.0


@pytest.mark.parametrize("policy", ["refuse", "mask_out", "neutral"])
def test_missing_where_nothing_is_trained_is_harmless(policy: Any) -> None:
    value = [-1.5, -1.0, -0.5, None, -1.0]
    for form in (value, as_rows(value), as_nan(value)):
        with settings(missing=policy):
            batch = tis_batch(rollout_log_probs=form)
        assert batch.loss_mask.tolist() == [True, True, True, False, True]
        assert batch.repairs == {}


def test_a_whole_row_is_missing() -> None:
    value: list[Any] = [None, [-0.5, -0.5, -1.0]]
    for form in (value, [[None, None], [-0.5, -0.5, -1.0]]):
        with pytest.raises(MissingFieldError) as caught:
            tis_batch(rollout_log_probs=form)
        assert (caught.value.row, caught.value.position) == (0, None)
        assert caught.value.found == "no value in this row"
        with settings(missing="mask_out"):
            batch = tis_batch(rollout_log_probs=form)
        assert batch.loss_mask.tolist() == [False, False, True, False, True]
        with settings(missing="neutral"):
            batch = tis_batch(rollout_log_probs=form)
        assert batch.rollout_log_probs.tolist() == [*OLD[:2], -0.5, -0.5, -1.0]


def test_a_missing_row_takes_the_dtype_of_the_others() -> None:
    with settings(missing="mask_out"):
        batch = tis_batch(rollout_log_probs=[None, torch.full((3,), -1.0, dtype=torch.float64)])
    assert batch.rollout_log_probs.dtype == torch.float64


def test_several_in_one_row() -> None:
    with pytest.raises(NonFiniteError) as caught:
        tis_batch(loss_mask=[1] * 5, rollout_log_probs=[[-1.0, -1.0], [None, -1.0, None]])
    assert (caught.value.row, caught.value.position, caught.value.found) == (1, 0, "None (2 in this row)")


def test_nothing_at_all_is_a_missing_field_whatever_the_policy() -> None:
    for policy in ("refuse", "mask_out", "neutral"):
        with settings(missing=policy), pytest.raises(MissingFieldError) as caught:
            tis_batch(rollout_log_probs=[None, None])
        assert caught.value.found == "nothing"


def test_old_scores_can_be_masked_out_and_nothing_neutral_replaces_them() -> None:
    with settings(missing="mask_out"):
        batch = policy_batch(old_log_probs=as_rows([None, *OLD[1:]]))
    assert batch.loss_mask.tolist() == [False, True, True, False, True]
    for form, kind in ((as_rows([None, *OLD[1:]]), MissingFieldError), (as_nan([None, *OLD[1:]]), NonFiniteError)):
        with settings(missing="neutral"), pytest.raises(kind) as caught:
            policy_batch(old_log_probs=form)
        assert caught.value.field == "old_log_probs"


def test_two_fields_that_miss_the_same_token_are_counted_once() -> None:
    with settings(missing="mask_out"):
        batch = tis_batch(old_log_probs=as_rows([-1.0, None, -1.0, -1.0, -1.0]))
    assert batch.repairs == {"old_log_probs: missing, masked out": 1}


def test_gradients_of_a_masked_out_step_are_those_of_the_narrower_mask() -> None:
    names = {"advantages": [1.0, -1.0, 2.0, 0.0, -2.0], "old_log_probs": torch.tensor(OLD)}
    with settings(missing="mask_out"):
        repaired = FullBatch(
            response_lengths=LENGTHS, loss_mask=MASK, rollout_log_probs=FORMS["rows"], **names
        ).weighted("token-mean")
    narrow = PolicyBatch(response_lengths=LENGTHS, loss_mask=[1, 0, 1, 0, 1], **names).weighted("token-mean")
    gradients = []
    for batch in (repaired, narrow):
        leaf = live()
        policy_loss(batch.bind(log_probs=leaf), PPOClip()).backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.tolist())
    assert gradients[0] == gradients[1]


# -- after the build ------------------------------------------------------------------------------------------------


class Extended(PolicyBatch, TISBatch):
    """With the sampler's scores, which may come later."""


def test_extending_a_weighted_step_computes_its_weights_anew() -> None:
    step = policy_batch().weighted("token-mean")
    with settings(missing="mask_out"):
        wider = step.extend(Extended, rollout_log_probs=FORMS["rows"])
    assert wider.loss_weights.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    assert step.loss_weights.tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 4, 0, 1 / 4])


def test_a_part_of_a_step_cannot_lose_tokens() -> None:
    part = policy_batch().weighted("token-mean").split(samples=1)[0]
    with settings(missing="mask_out"):
        assert part.extend(Extended, rollout_log_probs=[-1.0, -1.0]).loss_weights.tolist() == [0.25, 0.25]
        with pytest.raises(CorrectionError) as caught:
            part.extend(Extended, rollout_log_probs=[-1.0, None])
    assert caught.value.field == "loss_weights"


@pytest.mark.parametrize("policy", ["refuse", "mask_out", "neutral"])
def test_a_live_score_that_is_nan_is_never_papered_over(policy: Any) -> None:
    bad = torch.tensor([NAN, *OLD[1:]], requires_grad=True)
    step = policy_batch().weighted("token-mean")
    with settings(missing=policy), pytest.raises(NonFiniteError) as caught:
        step.bind(log_probs=bad)
    assert (caught.value.field, caught.value.row, caught.value.position) == ("log_probs", 0, 0)
    with settings(missing=policy), torch.no_grad(), pytest.raises(NonFiniteError):
        step.bind(log_probs=[None, *OLD[1:]])


# -- trailing dimensions --------------------------------------------------------------------------------------------


class Top(RolloutBatch):
    """Scores of the best tokens at each position."""

    topk_log_probs: Fixed[Float[Tensor, "tokens topk"]] = unbound()


def top(rows: list[Any]) -> Top:
    return Top(response_lengths=[1, 2], loss_mask=[1, 1, 1], topk_log_probs=rows)


PAIR = [-1.0, -2.0]
TOP_ROWS: dict[str, list[Any]] = {
    "a row": [[PAIR], None],
    "a token": [[PAIR], [PAIR, None]],
    "a number": [[PAIR], [PAIR, [-1.0, None]]],
    "all tokens of a row": [[PAIR], [None, None]],
    "a token of tensors": [torch.tensor([PAIR]), [None, PAIR]],
}


@pytest.mark.parametrize("rows", TOP_ROWS.values(), ids=[name.replace(" ", "_") for name in TOP_ROWS])
def test_missing_scores_of_the_best_tokens(rows: list[Any]) -> None:
    with pytest.raises(ContractError) as caught:
        top(rows)
    assert caught.value.field == "topk_log_probs"
    assert caught.value.row == 1
    with settings(missing="mask_out"):
        batch = top(rows)
    assert batch.topk_log_probs.shape == (3, 2)
    assert batch.repairs["topk_log_probs: missing, masked out"] == 3 - int(batch.loss_mask.sum())
    assert not batch.loss_mask.all()
    assert batch.loss_mask[0]


def test_a_nan_among_the_best_tokens_masks_the_token_out() -> None:
    with settings(missing="mask_out"):
        batch = top([torch.tensor([PAIR]), torch.tensor([[NAN, -1.0], PAIR])])
    assert batch.loss_mask.tolist() == [True, False, True]
