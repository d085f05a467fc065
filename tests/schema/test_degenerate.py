"""Zero samples, zero tokens, one token, nothing trained: the whole life cycle works, and backward always runs."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from rollout_contract import Fixed, PolicyBatch, RolloutBatch, TISBatch, policy_loss, unbound
from rollout_contract.aggregation import Aggregation, Mode
from rollout_contract.corrections import Reject, Truncate
from rollout_contract.objectives import PPOClip
from tests.schema.batches import NAN, live


class Step(PolicyBatch, TISBatch):
    """With a field of every axis."""

    reward: Fixed[Float[Tensor, "batch"]]
    baseline: Fixed[Float[Tensor, "groups"]]
    positions: Fixed[Float[Tensor, "sequence"]]
    top: Fixed[Float[Tensor, "tokens topk"]] = unbound()


def make(mask: list[list[int]], as_tensors: bool) -> Step:
    """Scores are -1 where the mask is on and NaN elsewhere."""
    lengths = [len(row) for row in mask]
    scores = [[-1.0 if keep else NAN for keep in row] for row in mask]
    tokens: Any = scores
    trained: Any = mask
    if as_tensors:
        tokens = torch.tensor([x for row in scores for x in row])
        trained = torch.tensor([x for row in mask for x in row], dtype=torch.long)
    names = ("old_log_probs", "rollout_log_probs", "advantages")
    num = len(mask)
    return Step(
        response_lengths=lengths,
        prompt_lengths=[2] * num,
        group_ids=list(range(num)),
        loss_mask=trained,
        reward=torch.zeros(num),
        baseline=torch.zeros(num),
        positions=torch.zeros(sum(lengths) + 2 * num),
        **dict.fromkeys(names, tokens),
    )


MASKS: dict[str, list[list[int]]] = {
    "no samples": [],
    "one sample without tokens": [[]],
    "samples without tokens": [[], [], []],
    "one token": [[1]],
    "one masked token": [[0]],
    "nothing trained": [[0, 0], [], [0]],
    "one trained token": [[0, 0], [], [0, 1]],
}


@pytest.fixture(params=MASKS, ids=[name.replace(" ", "_") for name in MASKS])
def mask(request: pytest.FixtureRequest) -> list[list[int]]:
    return MASKS[request.param]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_the_whole_life_cycle(mask: list[list[int]], as_tensors: bool) -> None:
    step = make(mask, as_tensors)
    num_tokens = sum(map(len, mask))
    assert (len(step), step.layout.num_tokens) == (len(mask), num_tokens)
    step = step.corrected((Truncate() & Reject(high=2.0))(step)).weighted("token-mean")
    total, gradients = 0.0, []
    for micro in step.split(max_tokens=5):
        leaf = live(torch.full((micro.layout.num_tokens,), -1.0))
        loss = policy_loss(micro.bind(log_probs=leaf), PPOClip())
        loss.backward()
        assert leaf.grad is not None
        assert all(value == value for value in loss.metrics.compute().values())
        total += loss.value.item()
        gradients += leaf.grad.tolist()
    trained = [float(keep) for row in mask for keep in row]
    count = max(sum(trained), 1.0)
    assert gradients == [keep / count for keep in trained]
    assert total == (1.0 if any(trained) else 0.0)


@pytest.mark.parametrize("count_empty", [False, True])
@pytest.mark.parametrize("mode", get_args(Mode))
def test_every_aggregation_is_finite(mask: list[list[int]], mode: Mode, count_empty: bool) -> None:
    spec = Aggregation(mode=mode, constant=3.0 if mode == "constant" else None, count_empty=count_empty)
    weights = make(mask, True).weighted(spec).loss_weights
    assert torch.isfinite(weights).all()
    assert (weights > 0).tolist() == [bool(keep) for row in mask for keep in row]


def test_every_way_to_cut_join_show_and_send(mask: list[list[int]]) -> None:
    step = make(mask, True)
    num = len(mask)
    for same in (
        step.select(range(num)),
        step.to("cpu"),
        step.pad_to(num),
        Step.concat([step]),
        Step.concat(step.split(samples=1)),
        pickle.loads(pickle.dumps(step)),
        RolloutBatch.extend(step, Step),
    ):
        assert step.allclose(same)
    assert [len(part) for part in step] == [1] * num
    assert len(step.pad_to(num + 2)) == num + 2
    assert len(step.select([])) == 0
    assert step.select([]).reward.shape == (0,)
    assert repr(step).startswith("Step(")
    assert step.summary().trained_tokens == sum(map(sum, mask))
    assert str(step.summary())


def test_parts_without_samples_join(mask: list[list[int]]) -> None:
    step = make(mask, True)
    assert step.allclose(Step.concat([step.select([]), step]))


@pytest.mark.parametrize("top", [torch.zeros(0, 4), [], [[], []]])
def test_no_tokens_with_a_trailing_dimension(top: Any) -> None:
    """Lists without any token cannot say how wide a row is."""

    class Top(RolloutBatch):
        top: Fixed[Float[Tensor, "tokens topk"]]
        other: Fixed[Float[Tensor, "tokens topk"]]

    lengths = [0, 0] if top != [] else []
    batch = Top(response_lengths=lengths, loss_mask=[[] for _ in lengths], top=top, other=torch.zeros(0, 4))
    assert batch.top.shape[0] == 0
    full = Top(response_lengths=[1], loss_mask=[1], top=torch.zeros(1, 4), other=torch.zeros(1, 4))
    assert Top.concat([batch, full]).top.shape == (1, 4)


def test_a_width_that_another_axis_binds() -> None:
    class Top(RolloutBatch):
        top: Fixed[Float[Tensor, "tokens topk"]]
        prior: Fixed[Float[Tensor, "batch topk"]]

    batch = Top(response_lengths=[0, 0], loss_mask=[[], []], top=[[], []], prior=torch.zeros(2, 4))
    assert (batch.top.shape[0], batch.prior.shape) == (0, (2, 4))


def test_an_empty_list_is_a_packed_tensor_of_a_batch_without_tokens() -> None:
    batch = PolicyBatch(response_lengths=[0, 0], loss_mask=[], old_log_probs=[], advantages=torch.zeros(0))
    assert batch.old_log_probs.shape == (0,)
