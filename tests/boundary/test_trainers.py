"""The dict of each trainer: the same four scores in nine arrangements give the same batch on the trained tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import settings
from rollout_contract.boundary import (
    AREAL,
    AREAL_ROLLOUTS,
    MILES,
    NEMO_RL,
    OPENRLHF,
    PRIME_RL,
    SKYRL,
    SLIME,
    TRAINERS,
    TRL,
    VERL,
    Key,
    Names,
    PersistedBatch,
    guard,
)
from rollout_contract.errors import LengthError, ShapeError
from tests.boundary.dicts import NAN, padded

PROMPTS, RESPONSES = [2, 1], [3, 2]
TOTALS = [5, 3]
MASK = [1.0, 0.0, 1.0, 1.0, 1.0]
OLD = [-1.0, -9.0, -2.0, -0.5, -3.0]
ROLLOUT = [-1.1, -9.0, -2.2, -0.6, -3.1]
REF = [-1.2, -9.0, -2.3, -0.7, -3.2]
ADVANTAGES = [1.0, 1.0, 1.0, -2.0, -2.0]
TRAINED = [0, 2, 3, 4]


def packed(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers)


def response(numbers: list[float], side: str = "right", width: int = 4) -> Tensor:
    """[rows, width]: responses alone."""
    return padded(packed(numbers), RESPONSES, width, side)


def sequences(numbers: list[float], prompt: float = 0.0) -> Tensor:
    """[all tokens]: prompts and responses end to end, token-aligned."""
    rows = packed(numbers).split(RESPONSES)
    return torch.cat([torch.cat([torch.full((p,), prompt), row]) for p, row in zip(PROMPTS, rows, strict=True)])


def whole(numbers: list[float], width: int = 6) -> Tensor:
    """[rows, width]: prompt and response, token-aligned, padded on the right."""
    return padded(sequences(numbers), TOTALS, width)


def predictions(numbers: list[float], width: int = 6) -> Tensor:
    """[rows, width]: the same, prediction-aligned: column i scores token i + 1."""
    return torch.roll(whole(numbers, width), -1, 1)


def lists(numbers: list[float]) -> list[Tensor]:
    return list(packed(numbers).split(RESPONSES))


def miles() -> dict[str, Any]:
    return {
        "response_lengths": RESPONSES, "total_lengths": TOTALS, "loss_masks": lists(MASK), "log_probs": lists(OLD),
        "rollout_log_probs": lists(ROLLOUT), "ref_log_probs": lists(REF), "advantages": lists(ADVANTAGES),
    }  # fmt: skip


def verl() -> dict[str, Any]:
    return {
        "response_mask": response(MASK).long(), "old_log_probs": response(OLD), "rollout_log_probs": response(ROLLOUT),
        "ref_log_prob": response(REF), "advantages": response(ADVANTAGES), "responses": torch.zeros(2, 4).long(),
    }  # fmt: skip


def trl() -> dict[str, Any]:
    return {
        "completion_mask": response([1.0] * 5).long(), "tool_mask": response(MASK).long(),
        "advantages": packed([1.0, -2.0]),
        "old_per_token_logps": response(OLD), "sampling_per_token_logps": response(ROLLOUT),
        "ref_per_token_logps": response(REF), "importance_sampling_ratio": torch.tensor([[0.5], [2.0]]),
    }  # fmt: skip


def openrlhf() -> dict[str, Any]:
    return {
        "action_mask": predictions(MASK)[:, :-1].long(), "action_log_probs": predictions(OLD)[:, :-1],
        "rollout_log_probs": predictions(ROLLOUT)[:, :-1], "base_action_log_probs": predictions(REF)[:, :-1],
        "advantages": predictions(ADVANTAGES)[:, :-1], "rewards": torch.tensor([1.0, 0.0]), "kl": None,
    }  # fmt: skip


def prime_rl() -> dict[str, Any]:
    return {
        "loss_mask": sequences(MASK).bool()[None], "inference_logprobs": sequences(ROLLOUT)[None],
        "ref_logprobs": sequences(REF)[None], "advantages": sequences(ADVANTAGES)[None],
        "seq_lens": torch.tensor(TOTALS), "sequence_lengths": TOTALS,
    }  # fmt: skip


def nemo_rl() -> dict[str, Any]:
    return {
        "token_mask": whole(MASK).long(), "sample_mask": torch.ones(2), "prev_logprobs": whole(OLD),
        "generation_logprobs": whole(ROLLOUT), "reference_policy_logprobs": whole(REF), "advantages": whole(ADVANTAGES),
        "input_lengths": torch.tensor(TOTALS),
    }  # fmt: skip


def skyrl() -> dict[str, Any]:
    return {
        "loss_mask": response(MASK, "left"), "action_log_probs": response(OLD, "left"),
        "rollout_logprobs": response(ROLLOUT, "left"), "base_action_log_probs": response(REF, "left"),
        "advantages": response(ADVANTAGES, "left"), "rewards": response([0.0, 0.0, 1.0, 0.0, 0.0], "left"),
    }  # fmt: skip


def areal() -> dict[str, Any]:
    return {
        "loss_mask": predictions(MASK), "prox_logp": predictions(OLD), "logprobs": predictions(ROLLOUT),
        "ref_logp": predictions(REF), "advantages": predictions(ADVANTAGES),
    }  # fmt: skip


def areal_rollouts() -> dict[str, Any]:
    """Masks and rollout log-probs are those of tokens, the engine's own scores those of predictions."""
    rolled = {"loss_mask": whole(MASK), "logprobs": whole(ROLLOUT), "advantages": whole(ADVANTAGES)}
    return areal() | rolled


DICTS: list[tuple[Names, Callable[[], dict[str, Any]]]] = [
    (MILES, miles), (SLIME, miles), (VERL, verl), (TRL, trl), (OPENRLHF, openrlhf), (PRIME_RL, prime_rl),
    (NEMO_RL, nemo_rl), (SKYRL, skyrl), (AREAL, areal), (AREAL_ROLLOUTS, areal_rollouts),
]  # fmt: skip
IDS = [f"{names.trainer}-{make.__name__}" for names, make in DICTS]


def trained(batch: PersistedBatch, name: str) -> list[float]:
    values: Tensor = getattr(batch, name)
    found: list[float] = values[batch.loss_mask].tolist()
    return found


@pytest.mark.parametrize(("names", "make"), DICTS, ids=IDS)
def test_every_arrangement_gives_the_same_trained_tokens(names: Names, make: Callable[[], dict[str, Any]]) -> None:
    batch = guard(make(), PersistedBatch, names)
    expected = {"old_log_probs": OLD, "rollout_log_probs": ROLLOUT, "ref_log_probs": REF, "advantages": ADVANTAGES}
    for name, numbers in expected.items():
        if batch.has(name):
            assert trained(batch, name) == pytest.approx([numbers[i] for i in TRAINED]), name
    assert batch.has("rollout_log_probs")
    assert batch.has("old_log_probs") == (names is not PRIME_RL)


@pytest.mark.parametrize(("names", "make"), DICTS, ids=IDS)
def test_every_score_of_every_trainer_is_cut_where_it_lies(names: Names, make: Callable[[], dict[str, Any]]) -> None:
    data = make()
    scores = [key for key, value in data.items() if _is_score(names, key, value)]
    assert len(scores) >= 3
    for key in scores:
        data[key] = _live(data[key])
    before = dict(data)
    guard(data, PersistedBatch, names)
    for key, value in data.items():
        assert not _any_live(value), key
        assert (value is before[key]) == (key not in scores), key
        assert type(value) is type(before[key])
    for key in scores:
        for new, old in zip(_rows(data[key]), _rows(before[key]), strict=True):
            assert new.data_ptr() == old.data_ptr()


def _is_score(names: Names, key: str, value: Any) -> bool:
    keys = {part for name in PersistedBatch.__plan__ if (place := names.key(name)) is not None for part in place.keys}
    return key in keys and "mask" not in key and _rows(value)[0].is_floating_point()


def _rows(value: Any) -> list[Tensor]:
    rows = list(value) if isinstance(value, list) else [value]
    return [torch.as_tensor(row) for row in rows]


def _live(value: Any) -> Any:
    if isinstance(value, list):
        return [_live(row) for row in value]
    return value.clone().requires_grad_() * 1.0


def _any_live(value: Any) -> bool:
    return any(row.requires_grad for row in _rows(value)) if isinstance(value, list | Tensor) else False


# -- padding -------------------------------------------------------------------------------------------------------


def test_padded_rows_are_taken_whole_without_a_copy() -> None:
    data = verl()
    batch = guard(data, PersistedBatch, VERL)
    assert batch.response_lengths == (4, 4)
    assert batch.old_log_probs.data_ptr() == data["old_log_probs"].data_ptr()


@pytest.mark.parametrize(
    ("names", "make"), [(VERL, verl), (SKYRL, skyrl), (TRL, trl)], ids=["right", "left", "per row"]
)
def test_lengths_take_the_padding_away(names: Names, make: Callable[[], dict[str, Any]]) -> None:
    batch = guard(make(), PersistedBatch, names, response_lengths=RESPONSES)
    assert batch.old_log_probs.tolist() == OLD
    assert batch.advantages.tolist() == ADVANTAGES
    if names is TRL:
        assert batch.correction_weights.tolist() == [0.5, 0.5, 0.5, 2.0, 2.0]


def test_padding_may_hold_anything() -> None:
    data = skyrl()
    data["action_log_probs"] = padded(packed(OLD), RESPONSES, 4, "left", pad=NAN)
    batch = guard(data, PersistedBatch, SKYRL)
    assert trained(batch, "old_log_probs") == [OLD[i] for i in TRAINED]


# -- masks that are products ---------------------------------------------------------------------------------------


def test_a_sample_mask_counts_for_the_whole_row() -> None:
    data = nemo_rl() | {"sample_mask": torch.tensor([0.0, 1.0])}
    batch = guard(data, PersistedBatch, NEMO_RL)
    assert trained(batch, "old_log_probs") == OLD[3:]


def test_a_tool_mask_may_be_absent() -> None:
    data = trl() | {"tool_mask": None}
    assert int(guard(data, PersistedBatch, TRL).loss_mask.sum()) == 5


@pytest.mark.parametrize("tool_mask", [None, response(MASK).long()])
def test_a_completion_mask_is_never_narrowed(tool_mask: Tensor | None) -> None:
    """The model attends by it; what is not to be trained goes into the tool mask."""
    data = trl() | {"tool_mask": tool_mask}
    before = data["completion_mask"].clone()
    data["sampling_per_token_logps"][1, 1] = NAN
    with settings(missing="mask_out"):
        guard(data, PersistedBatch, TRL)
    assert torch.equal(data["completion_mask"], before)
    assert data["tool_mask"][1].tolist() == [1, 0, 0, 0]


# -- alignment -----------------------------------------------------------------------------------------------------


def test_a_teacher_that_was_written_token_aligned() -> None:
    """The scores of a teacher come as predictions; where a script wrote those of tokens, the names say so."""
    data = areal() | {"teacher_logp": whole(REF)}
    wrong = guard(data, PersistedBatch, AREAL)
    assert trained(wrong, "teacher_log_probs") != pytest.approx([REF[i] for i in TRAINED])
    names = AREAL.but(fields={"teacher_log_probs": Key("teacher_logp", alignment="token")})
    right = guard(data, PersistedBatch, names)
    assert trained(right, "teacher_log_probs") == pytest.approx([REF[i] for i in TRAINED])


def test_packed_predictions_do_not_cross_samples() -> None:
    names = AREAL_ROLLOUTS.but(form="packed")
    offsets = torch.tensor([0, *torch.tensor(TOTALS).cumsum(0).tolist()], dtype=torch.int32)
    rolled = torch.cat([torch.roll(row, -1) for row in sequences(OLD, prompt=-7.0).split(TOTALS)])
    data = {"loss_mask": sequences(MASK), "logprobs": sequences(ROLLOUT), "prox_logp": rolled, "cu_seqlens": offsets}
    batch = guard(data, PersistedBatch, names)
    assert batch.response_lengths == (5, 3)
    assert trained(batch, "old_log_probs") == [OLD[i] for i in TRAINED]
    assert [row[0].item() for row in batch.layout.split(batch.old_log_probs)] == [0.0, 0.0]


def test_predictions_in_lists_and_one_column_short() -> None:
    short = [torch.roll(row, -1)[:-1] for row in sequences(OLD).split(TOTALS)]
    names = MILES.but(lengths=None, totals=None, fields={"old_log_probs": Key("old", alignment="prediction")})
    data: dict[str, Any] = {"loss_masks": list(sequences(MASK).split(TOTALS)), "old": short}
    assert trained(guard(data, PersistedBatch, names), "old_log_probs") == [OLD[i] for i in TRAINED]
    data["old"] = [row.tolist() for row in short]
    assert trained(guard(data, PersistedBatch, names), "old_log_probs") == [OLD[i] for i in TRAINED]
    padded_names = VERL.but(fields={"old_log_probs": Key("old", alignment="prediction")})
    data = {"response_mask": whole(MASK), "old": predictions(OLD)[:, :-1]}
    assert trained(guard(data, PersistedBatch, padded_names), "old_log_probs") == [OLD[i] for i in TRAINED]


@pytest.mark.parametrize("extra", [2, -2])
def test_a_row_of_another_length_is_no_matter_of_alignment(extra: int) -> None:
    names = MILES.but(lengths=None, totals=None, fields={"old_log_probs": Key("old", alignment="prediction")})
    rows = [torch.zeros(TOTALS[0] + extra), torch.zeros(TOTALS[1])]
    data = {"loss_masks": list(sequences(MASK).split(TOTALS)), "old": rows}
    with pytest.raises(LengthError, match=f"{TOTALS[0] + extra} entries"):
        guard(data, PersistedBatch, names)
    wide = {"response_mask": whole(MASK), "old": torch.zeros(2, 6 + extra)}
    with pytest.raises(ShapeError, match=r"old_log_probs \[shape\]"):
        guard(wide, PersistedBatch, VERL.but(fields={"old_log_probs": Key("old", alignment="prediction")}))


def test_token_aligned_scores_among_predictions() -> None:
    names = OPENRLHF.but(fields={"old_log_probs": Key("old", alignment="token")})
    data = {"action_mask": predictions(MASK)[:, :-1], "old": whole(OLD)}
    assert trained(guard(data, PersistedBatch, names), "old_log_probs") == [OLD[i] for i in TRAINED]
    lists_of = {"action_mask": [row[:-1].tolist() for row in _rolled(MASK)], "old": list(sequences(OLD).split(TOTALS))}
    assert trained(guard(lists_of, PersistedBatch, names), "old_log_probs") == [OLD[i] for i in TRAINED]


def _rolled(numbers: list[float]) -> list[Tensor]:
    return [torch.roll(row, -1) for row in sequences(numbers).split(TOTALS)]


def test_filled_values_go_back_to_their_own_alignment() -> None:
    data = areal_rollouts()
    data["prox_logp"][0, 3] = NAN  # scores token 4, the last trained one of its sample
    before = data["prox_logp"].clone()
    with settings(missing="mask_out"):
        guard(data, PersistedBatch, AREAL_ROLLOUTS)
    changed = (data["prox_logp"] != before).nonzero().tolist()
    assert changed == [[0, 3]]
    assert data["loss_mask"][0].tolist() == [0, 0, 1, 0, 0, 0]


# -- the tables ----------------------------------------------------------------------------------------------------


def test_every_trainer_is_documented_with_its_keys() -> None:
    page = (Path(__file__).parents[2] / "docs" / "boundary.md").read_text()
    for trainer, names in TRAINERS.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {trainer} "))
        for field, place in names.fields.items():
            key = names.key(field)
            assert place is None or key is None or all(f"`{part}`" in line for part in key.keys), (trainer, field)
        assert names.form in line
        assert names.alignment in line


def test_a_field_under_its_own_name_unless_another_field_has_that_key() -> None:
    assert MILES.key("log_probs") is None
    assert str(MILES.key("old_log_probs")) == "log_probs"
    assert str(MILES.key("values")) == "values"
    assert str(TRL.key("loss_mask")) == "completion_mask x tool_mask"
    assert SKYRL.key("rewards") is None


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="form"):
        MILES.but(form="ragged")
    with pytest.raises(ValueError, match="keys"):
        Key()
    with pytest.raises(ValueError, match="alignement"):
        Key("a", alignement="token")
