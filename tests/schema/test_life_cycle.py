"""build -> extend / corrected / weighted -> split -> bind -> losses; and what is refused on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, Metadata, PolicyBatch, RolloutBatch, Trainable, policy_loss, unbound
from rollout_contract.aggregation import Aggregation
from rollout_contract.corrections import Correction, Reject, Truncate
from rollout_contract.errors import (
    ContractError,
    CorrectionError,
    FrozenError,
    MetadataError,
    MissingFieldError,
    RowsError,
    SchemaError,
    ShapeError,
    UnknownFieldError,
)
from rollout_contract.objectives import PPOClip
from rollout_contract.sampling import Sampling
from rollout_contract.schemas import KLBatch, LiveBatch, ObservedEntropyBatch, RolloutScored, Scored, TISBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, MASK, OLD, FullBatch, live, policy_batch

ROLLOUT = [-1.5, -2.0, -0.5, -3.0, -1.0]


def full_batch(**changes: Any) -> FullBatch:
    plain = {
        "response_lengths": LENGTHS,
        "loss_mask": MASK,
        "old_log_probs": torch.tensor(OLD),
        "rollout_log_probs": torch.tensor(ROLLOUT),
        "advantages": torch.tensor(ADVANTAGES),
    }
    return FullBatch(**(plain | changes))


# -- extend ---------------------------------------------------------------------------------------------------------


def test_extend_adds_fields_and_keeps_rows_values_and_storage() -> None:
    scored = Scored(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=torch.tensor(OLD), row_ids=[7, 9])
    step = scored.extend(PolicyBatch, advantages=torch.tensor(ADVANTAGES))
    assert type(step) is PolicyBatch
    assert step.row_ids == (7, 9)
    assert step.old_log_probs.data_ptr() == scored.old_log_probs.data_ptr()
    assert not scored.has("advantages")


def test_extend_needs_what_the_wider_schema_requires() -> None:
    scored = Scored(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=torch.tensor(OLD))
    with pytest.raises(MissingFieldError) as caught:
        scored.extend(PolicyBatch)
    assert (caught.value.subject, caught.value.field) == ("PolicyBatch", "advantages")
    with pytest.raises(ShapeError):
        scored.extend(PolicyBatch, advantages=torch.zeros(2))
    with pytest.raises(UnknownFieldError):
        scored.extend(PolicyBatch, advantages=torch.zeros(5), advantage=torch.zeros(5))


def test_extend_loses_no_field() -> None:
    with pytest.raises(SchemaError) as caught:
        policy_batch().extend(TISBatch, rollout_log_probs=torch.tensor(ROLLOUT))
    assert (caught.value.field, caught.value.found) == ("advantages", "no advantages")
    assert caught.value.hint == "let TISBatch inherit from PolicyBatch, or from the schemas that it combines"


def test_a_field_means_the_same_after_extend() -> None:
    class PerToken(RolloutBatch):
        score: Fixed[Float[Tensor, "tokens"]]

    class PerSample(RolloutBatch):
        score: Fixed[Float[Tensor, "batch"]]

    batch = PerToken(response_lengths=[1, 1], loss_mask=[1, 1], score=[[1.0], [2.0]])
    with pytest.raises(SchemaError) as caught:
        batch.extend(PerSample)
    assert (caught.value.expected, caught.value.found) == (
        "a schema that keeps fixed float[tokens]",
        "fixed float[batch]",
    )


@pytest.mark.parametrize("name", ["old_log_probs", "loss_mask", "row_ids", "response_lengths"])
def test_extend_replaces_nothing(name: str) -> None:
    step = policy_batch()
    with pytest.raises(FrozenError) as caught:
        step.extend(PolicyBatch, **{name: getattr(step, name)})
    assert (caught.value.field, caught.value.hint) == (name, "fields are never replaced: build a new batch")


def test_lengths_and_groups_may_come_later() -> None:
    step = policy_batch()
    wider = step.extend(PolicyBatch, prompt_lengths=[2, 4], group_ids=[3, 3])
    assert wider.layout.prompt_lengths == (2, 4)
    assert wider.layout.num_groups == 1
    assert [len(part) for part in wider.split(max_tokens=7)] == [1, 1]
    assert step.layout.prompt_lengths is None
    with pytest.raises(ContractError, match="one entry for each of the 2 samples"):
        step.extend(PolicyBatch, group_ids=[1])


def test_later_groups_fit_the_fields_that_count_them() -> None:
    class Grouped(PolicyBatch):
        baseline: Fixed[Float[Tensor, "groups"]] = unbound()

    step = policy_batch().extend(Grouped, baseline=[1.0, 2.0])
    with pytest.raises(ShapeError, match="baseline"):
        step.extend(Grouped, group_ids=[3, 3])
    assert step.extend(Grouped, group_ids=[3, 4]).layout.groups == (3, 4)


def test_groups_come_before_the_weights_that_depend_on_them() -> None:
    step = policy_batch().weighted("prompt-mean")
    with pytest.raises(RowsError) as caught:
        step.extend(PolicyBatch, group_ids=[3, 3])
    assert caught.value.field == "group_ids"


# -- bind -----------------------------------------------------------------------------------------------------------


class Noted(PolicyBatch, ObservedEntropyBatch):
    """With a fixed field of the forward pass, and metadata."""

    note: Metadata[str] = unbound()


def test_bind_takes_live_and_fixed_outputs_of_the_forward_pass() -> None:
    step = policy_batch().extend(Noted)
    entropy = torch.rand(5, requires_grad=True)
    bound = step.bind(log_probs=live(), observed_entropy=entropy)
    assert bound.log_probs.requires_grad
    assert not bound.observed_entropy.requires_grad
    assert not step.has("log_probs")
    assert step.has("old_log_probs")


def test_the_next_forward_pass_may_be_bound_to_the_same_batch() -> None:
    step = policy_batch().weighted("token-mean")
    first = step.bind(log_probs=live())
    second = first.bind(log_probs=live(torch.tensor(OLD)))
    assert second.log_probs.tolist() == OLD
    assert first.log_probs.tolist() != OLD


@pytest.mark.parametrize(
    "name", ["old_log_probs", "advantages", "loss_mask", "loss_weights", "correction_weights", "row_ids", "nonsense"]
)
def test_bind_takes_nothing_else(name: str) -> None:
    with pytest.raises(UnknownFieldError) as caught:
        policy_batch().bind(**{name: live()})
    assert caught.value.field == name
    assert caught.value.expected == "a field that is bound after the build: log_probs"


def test_a_schema_without_late_fields_binds_nothing() -> None:
    batch = RolloutScored(response_lengths=LENGTHS, loss_mask=MASK, rollout_log_probs=ROLLOUT)
    with pytest.raises(UnknownFieldError, match="this schema has none"):
        batch.bind(log_probs=live())


@pytest.mark.parametrize("nothing", [None, [], [None, None]])
def test_bind_of_nothing_is_a_mistake(nothing: Any) -> None:
    for step in (policy_batch(), policy_batch().bind(log_probs=live())):
        with pytest.raises(MissingFieldError) as caught:
            step.bind(log_probs=nothing)
        assert caught.value.field == "log_probs"


def test_what_is_not_bound_says_how_to_get_it() -> None:
    step = policy_batch().extend(Noted)
    for name, repair in {
        "log_probs": "call batch.bind(log_probs=...)",
        "observed_entropy": "call batch.bind(observed_entropy=...)",
        "loss_weights": 'call batch.weighted("token-mean") (or another aggregation) on the whole step, '
        "before any split",
        "correction_weights": "call batch.corrected()",
        "prompt_lengths": "pass prompt_lengths= at the build",
        "note": "pass note= at the build",
    }.items():
        with pytest.raises(MissingFieldError) as caught:
            getattr(step, name)
        assert caught.value.hint == repair
        assert not hasattr(step, name)
        assert not step.has(name)


# -- what a loss requires -------------------------------------------------------------------------------------------


def test_a_loss_needs_weights_and_live_scores() -> None:
    with pytest.raises(MissingFieldError, match="loss_weights"):
        policy_loss(policy_batch().bind(log_probs=live()), PPOClip())
    with pytest.raises(MissingFieldError, match="log_probs"):
        policy_loss(policy_batch().weighted("token-mean"), PPOClip())


def test_a_loss_needs_its_schema() -> None:
    kl = KLBatch(response_lengths=LENGTHS, loss_mask=MASK, ref_log_probs=OLD)
    with pytest.raises(MissingFieldError) as caught:
        policy_loss(kl, PPOClip())  # type: ignore[type-var]
    assert caught.value.found == "a KLBatch, which lacks advantages, old_log_probs"
    with pytest.raises(MissingFieldError, match="a dict"):
        policy_loss({"log_probs": live()}, PPOClip())  # type: ignore[type-var]


def test_a_field_of_the_same_name_has_the_same_role_and_shape() -> None:
    class Lookalike(LiveBatch):
        old_log_probs: Fixed[Float[Tensor, "tokens"]]
        advantages: Fixed[Float[Tensor, "tokens"]]

    class Live(LiveBatch):
        old_log_probs: Trainable[Float[Tensor, "tokens"]] = unbound()
        advantages: Fixed[Float[Tensor, "batch"]]

    fields = {"response_lengths": LENGTHS, "loss_mask": MASK}
    same = Lookalike(**fields, old_log_probs=OLD, advantages=ADVANTAGES).weighted("sum")
    policy_loss(same.bind(log_probs=live()), PPOClip()).backward()  # type: ignore[type-var]
    other = Live(**fields, advantages=[1.0, 2.0]).weighted("sum").bind(log_probs=live(), old_log_probs=live())
    with pytest.raises(MissingFieldError) as caught:
        policy_loss(other, PPOClip())  # type: ignore[type-var]
    assert caught.value.found == "a Live, which lacks advantages, old_log_probs"


# -- weighted -------------------------------------------------------------------------------------------------------


def test_weights_are_fixed_and_their_rule_is_kept() -> None:
    step = policy_batch().weighted("token-mean")
    assert step.loss_weights.tolist() == [0.25, 0.25, 0.25, 0.0, 0.25]
    assert step.aggregation == Aggregation(mode="token-mean")
    assert not step.loss_weights.requires_grad


def test_weights_can_be_made_anew_before_a_split() -> None:
    step = policy_batch().weighted("token-mean").weighted("sum", scale=2.0)
    assert step.loss_weights.tolist() == [2.0, 2.0, 2.0, 0.0, 2.0]
    assert str(step.aggregation) == "sum, scaled by 2"
    assert policy_batch().weighted(Aggregation(mode="sum", scale=3.0), scale=2.0).aggregation.scale == 6.0


def test_a_part_has_no_counts_of_its_own() -> None:
    part = policy_batch().split(samples=1)[0]
    assert part.is_part
    with pytest.raises(RowsError) as caught:
        part.weighted("token-mean")
    assert (caught.value.found, caught.value.hint) == (
        "a part of one, with too small counts",
        "call weighted() on the step, then split it; or give the step's denominator",
    )
    assert not policy_batch().split(samples=5)[0].is_part


@pytest.mark.parametrize("wrong", ["mean", "token_mean", "constant", ""])
def test_an_unknown_mode(wrong: Any) -> None:
    with pytest.raises(ValueError, match="1 validation error for Aggregation"):
        policy_batch().weighted(wrong)


def test_weights_of_ones_own_are_taken_as_they_are() -> None:
    step = policy_batch(loss_weights=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert step.split(samples=1)[1].loss_weights.tolist() == [3.0, 4.0, 5.0]
    assert not step.has("aggregation")


def test_a_part_may_be_weighted_by_the_count_of_its_step() -> None:
    parts = policy_batch().split(samples=1)
    weights = [part.weighted("token-mean", denominator=4).loss_weights for part in parts]
    assert torch.cat(weights).tolist() == policy_batch().weighted("token-mean").loss_weights.tolist()
    with pytest.raises(ContractError):
        parts[0].weighted("token-mean", denominator=0)
    joined = PolicyBatch.concat([part.weighted("token-mean", denominator=4) for part in parts])
    assert float(joined.loss_weights.sum()) == 1.0


# -- corrected ------------------------------------------------------------------------------------------------------


def rejecting(step: RolloutBatch, keep: list[bool]) -> Correction:
    return Correction(step, mask=torch.tensor(keep) & step.loss_mask)


KEEP = [True, False, True, True, True]


def test_rejected_tokens_leave_the_denominators_before_and_after_weighted() -> None:
    step = full_batch()
    correction = rejecting(step, KEEP)
    before = step.corrected(correction).weighted("token-mean")
    after = step.weighted("token-mean").corrected(correction)
    for made in (before, after):
        assert made.loss_mask.tolist() == [True, False, True, False, True]
        assert made.loss_weights.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "sum"])
def test_weights_made_anew_are_those_of_the_narrower_mask(mode: Any) -> None:
    keep = [False, False, True, True, True]
    step = full_batch()
    found = step.weighted(mode, scale=3.0).corrected(rejecting(step, keep)).loss_weights
    expected = full_batch(loss_mask=[0, 0, 1, 0, 1]).weighted(mode, scale=3.0).loss_weights
    assert torch.equal(found, expected)


def test_weights_of_a_part_or_of_all_ranks_cannot_be_made_anew() -> None:
    step = full_batch().weighted("token-mean")
    part = step.split(samples=1)[0]
    with pytest.raises(CorrectionError) as caught:
        part.corrected(rejecting(part, [True, False]))
    assert caught.value.field == "loss_weights"
    assert "before weighted() and split()" in caught.value.hint
    own = full_batch(loss_weights=torch.ones(5))
    with pytest.raises(CorrectionError):
        own.corrected(rejecting(own, KEEP))


def test_importance_weights_alone_change_no_denominator_and_may_come_late() -> None:
    part = full_batch().weighted("token-mean").split(samples=1)[0]
    corrected = part.corrected(Truncate()(part))
    assert corrected.loss_weights.tolist() == part.loss_weights.tolist()
    assert corrected.correction_weights.tolist() == pytest.approx([1.6487212, 1.0])


def test_a_correction_is_for_its_rows() -> None:
    step = full_batch()
    correction = Truncate()(step)
    for other in (step.select([1, 0]), step.select([0]), full_batch()):
        with pytest.raises(RowsError) as caught:
            other.corrected(correction)
        assert caught.value.field == "correction"


def test_one_set_of_importance_weights() -> None:
    step = full_batch()
    once = step.corrected(Truncate()(step))
    with pytest.raises(CorrectionError, match="a second set"):
        once.corrected(Truncate()(once))
    assert once.corrected(Reject(high=1.2)(once)).loss_mask.tolist() == [False, True, True, False, True]


def test_a_correction_that_nobody_used() -> None:
    step = full_batch()
    step = step.corrected(Truncate()(step)).weighted("token-mean").bind(log_probs=live())
    assert policy_loss(step, PPOClip()).used_correction


# -- sampling metadata ----------------------------------------------------------------------------------------------


COLD, WARM = Sampling(temperature=0.6), Sampling()


def test_scores_made_alike_go_together() -> None:
    step = full_batch(sampling={"old_log_probs": COLD, "rollout_log_probs": {"temperature": 0.6}})
    assert step.sampling["rollout_log_probs"] == COLD
    assert full_batch(sampling={"old_log_probs": COLD}).sampling == {"old_log_probs": COLD}
    assert not full_batch().has("sampling")


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"temperature": 1.0}, "processed at temperature 1.0"),
        ({"temperature": 0.6, "log_probs": "raw"}, "raw at temperature 0.6"),
        ({"temperature": 0.6, "top_p": 0.9}, "processed at temperature 0.6, top_p 0.9"),
        ({"temperature": 0.6, "top_k": 50}, "processed at temperature 0.6, top_k 50"),
    ],
)
def test_scores_made_differently_do_not_belong_into_one_ratio(other: dict[str, Any], found: str) -> None:
    with pytest.raises(MetadataError) as caught:
        full_batch(sampling={"old_log_probs": COLD, "rollout_log_probs": other})
    assert caught.value.field == "rollout_log_probs"
    assert caught.value.expected == "processed at temperature 0.6, as old_log_probs"
    assert caught.value.found == found


@pytest.mark.parametrize(
    "sampling",
    [
        {"advantages": WARM},
        {"nonsense": WARM},
        {"old_log_probs": {"temperature": 0.0}},
        {"old_log_probs": {"temperature": -1.0}},
        {"old_log_probs": {"top_p": 1.5}},
        {"old_log_probs": {"heat": 1.0}},
        {"old_log_probs": {"log_probs": "cooked"}},
        3,
    ],
    ids=str,
)
def test_sampling_that_means_nothing(sampling: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        full_batch(sampling=sampling)
    assert caught.value.field == "sampling"


def test_sampling_comes_with_each_field() -> None:
    step = policy_batch(sampling={"old_log_probs": COLD})
    wider = step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"rollout_log_probs": COLD})
    bound = wider.bind(log_probs=live(), sampling={"log_probs": COLD})
    assert set(bound.sampling) == {"old_log_probs", "rollout_log_probs", "log_probs"}
    with pytest.raises(MetadataError):
        wider.bind(log_probs=live(), sampling={"log_probs": WARM})
    with pytest.raises(MetadataError):
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"rollout_log_probs": WARM})
    with pytest.raises(FrozenError) as caught:
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling={"old_log_probs": WARM})
    assert caught.value.field == "sampling of old_log_probs"
    with pytest.raises(MetadataError):
        step.extend(FullBatch, rollout_log_probs=ROLLOUT, sampling=3)


def test_sampling_travels() -> None:
    step = full_batch(sampling={"old_log_probs": COLD})
    for other in (*step.split(samples=1), step.select([1]), step.to("cpu"), step.pad_to(3), step.weighted("sum")):
        assert other.sampling == {"old_log_probs": COLD}


# -- row ids --------------------------------------------------------------------------------------------------------


def test_row_ids_are_unique_in_the_process_and_may_be_given() -> None:
    first, second = policy_batch(), policy_batch()
    assert len({*first.row_ids, *second.row_ids}) == 4
    assert policy_batch(row_ids=[10, 20]).select([1]).row_ids == (20,)
    assert first.weighted("sum").extend(PolicyBatch).row_ids == first.row_ids
    with pytest.raises(ContractError, match="one entry for each of the 2 samples"):
        policy_batch(row_ids=[10])
