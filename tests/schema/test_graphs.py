"""Every way in for a graph ends in an error that names the field, or in a gradient of exactly None."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollout_contract import PolicyBatch, policy_loss, settings
from rollout_contract.errors import LiveGraphError, NoGraphError
from rollout_contract.objectives import PPOClip
from rollout_contract.schema.graph import LiveInputWarning, has_overlap
from rollout_contract.schemas import LiveBatch
from tests.schema.batches import ADVANTAGES, LENGTHS, NAN, OLD, fields, live, policy_batch, trained

Make = Callable[[list[float]], tuple[Any, list[Tensor]]]


def leaf(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = torch.tensor(values, requires_grad=True)
    return made, [made]


def derived(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = torch.tensor(values, requires_grad=True)
    return made * 1.0, [made]


def parameter(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = nn.Parameter(torch.tensor(values))
    return made, [made]


def float64(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    return made, [made]


def view(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = torch.tensor([values, values], requires_grad=True)
    return made[0], [made]


def rows(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = [torch.tensor(row, requires_grad=True) for row in (values[:2], values[2:])]
    return made, made


def one_live_row(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = torch.tensor(values[2:], requires_grad=True)
    return [torch.tensor(values[:2]), made * 1.0], [made]


def scalars(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = [torch.tensor(value, requires_grad=True) for value in values]
    return [made[:2], made[2:]], made


def jagged(values: list[float]) -> tuple[Any, list[Tensor]]:
    made = [torch.tensor(row, requires_grad=True) for row in (values[:2], values[2:])]
    return torch.nested.as_nested_tensor(made, layout=torch.jagged), made


WAYS: list[Make] = [leaf, derived, parameter, float64, view, rows, one_live_row, scalars, jagged]
FIELDS = {"old_log_probs": OLD, "advantages": ADVANTAGES}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("make", WAYS, ids=lambda way: way.__name__)
def test_a_live_fixed_field_gets_no_gradient(make: Make, name: str) -> None:
    value, leaves = make(FIELDS[name])
    step = policy_batch(**{name: value})
    assert not getattr(step, name).requires_grad
    assert getattr(step, name).grad_fn is None
    assert getattr(step, name).tolist() == FIELDS[name]
    loss, log_probs = trained(step, torch.tensor(OLD) - 0.1)
    assert [made.grad for made in leaves] == [None] * len(leaves)
    expected, plain = trained(policy_batch(), torch.tensor(OLD) - 0.1)
    assert log_probs.grad is not None
    assert plain.grad is not None
    assert loss.value.item() == expected.value.item()
    assert log_probs.grad.tolist() == plain.grad.tolist()


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("make", WAYS, ids=lambda way: way.__name__)
def test_it_can_be_refused_or_warned_about(make: Make, name: str) -> None:
    value, leaves = make(FIELDS[name])
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        policy_batch(**{name: value})
    assert caught.value.field == name
    with settings(live_inputs="warn"), pytest.warns(LiveInputWarning, match=name):
        step = policy_batch(**{name: value})
    trained(step, torch.tensor(OLD) - 0.1)
    assert [made.grad for made in leaves] == [None] * len(leaves)


@pytest.mark.parametrize("how", ["extend", "level off", "no_grad", "inference_mode", "mask_out"])
def test_the_graph_is_cut_wherever_the_field_comes_in(how: str) -> None:
    source = torch.tensor(ADVANTAGES, requires_grad=True)
    value = source * 1.0
    if how == "extend":
        scored = LiveBatch(response_lengths=LENGTHS, loss_mask=[1] * 5)
        step = scored.extend(PolicyBatch, old_log_probs=torch.tensor(OLD, requires_grad=True), advantages=value)
    elif how == "level off":
        with settings(level="off"):
            step = policy_batch(advantages=value)
    elif how == "mask_out":
        with settings(missing="mask_out"):
            step = policy_batch(advantages=value, old_log_probs=torch.tensor([NAN, *OLD[1:]], requires_grad=True))
    else:
        with getattr(torch, how)():
            step = policy_batch(advantages=value)
    assert not step.advantages.requires_grad
    assert not step.old_log_probs.requires_grad
    trained(step, torch.tensor(OLD) - 0.1)
    assert source.grad is None


def test_a_live_mask_is_cut_too() -> None:
    mask = torch.ones(5, requires_grad=True)
    assert not policy_batch(loss_mask=mask).loss_mask.requires_grad
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError, match="loss_mask"):
        policy_batch(loss_mask=mask)


def test_old_scores_may_be_the_current_ones_detached() -> None:
    """Legal: one update per batch. The ratio is 1 and the gradient is the plain policy gradient."""
    log_probs = live()
    step = policy_batch(old_log_probs=log_probs.detach()).weighted("sum")
    policy_loss(step.bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, -1.0, 1.0, 0.0, 1.0]


def test_old_scores_that_are_the_live_tensor_itself_are_cut_not_trained() -> None:
    log_probs = live()
    policy_loss(policy_batch(old_log_probs=log_probs).weighted("sum").bind(log_probs=log_probs), PPOClip()).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, -1.0, 1.0, 0.0, 1.0]


def test_messages_say_where_the_graph_comes_from() -> None:
    with settings(live_inputs="refuse"), pytest.raises(LiveGraphError) as caught:
        policy_batch(old_log_probs=torch.tensor(OLD, requires_grad=True).exp().log(), advantages=live())
    assert [violation.found for violation in caught.value.violations] == [
        "a leaf tensor with requires_grad=True",
        "a live graph (grad_fn LogBackward0)",
    ]


# -- trainable fields -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detach", [Tensor.detach, lambda x: x.detach().clone(), lambda x: x.tolist()])
def test_a_trainable_field_needs_a_graph(detach: Callable[[Tensor], Any]) -> None:
    value = detach(live())
    for build in (lambda: policy_batch().bind(log_probs=value), lambda: policy_batch(log_probs=value)):
        with pytest.raises(NoGraphError) as caught:
            build()
        assert (caught.value.field, caught.value.found) == ("log_probs", "no graph")


def test_it_needs_none_where_nothing_is_trained() -> None:
    value = live().detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            bound = policy_batch().weighted("token-mean").bind(log_probs=value)
            assert policy_loss(bound, PPOClip()).value.isfinite()


def test_scores_made_under_inference_mode_have_no_graph() -> None:
    with torch.inference_mode():
        value = torch.tensor(OLD)
    with pytest.raises(NoGraphError):
        policy_batch().bind(log_probs=value)


@pytest.mark.parametrize("make", [leaf, derived, parameter, view, rows, one_live_row, scalars, jagged])
def test_a_trainable_field_keeps_its_graph(make: Make) -> None:
    value, leaves = make(OLD)
    bound = policy_batch().bind(log_probs=value)
    assert bound.log_probs.requires_grad
    bound.log_probs.sum().backward()
    assert all(made.grad is not None for made in leaves)


# -- nothing is copied without need ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_live", [False, True])
def test_values_are_bit_equal_and_share_their_storage(dtype: torch.dtype, is_live: bool) -> None:
    given = {
        "loss_mask": torch.tensor([True, True, True, False, True]),
        "old_log_probs": torch.tensor([-0.1, -1e-30, -3.3, NAN, -7.7], dtype=dtype, requires_grad=is_live),
        "advantages": torch.tensor([0.1, 1e30, -3.3, 7.7, -0.0], dtype=dtype, requires_grad=is_live),
    }
    step = PolicyBatch(response_lengths=LENGTHS, **given)
    for name, tensor in given.items():
        held = getattr(step, name)
        assert held.data_ptr() == tensor.data_ptr()
        assert held.dtype == tensor.dtype
        assert torch.equal(torch.nan_to_num(held), torch.nan_to_num(tensor.detach()))


def test_transposed_and_strided_input_is_shared_too() -> None:
    table = torch.tensor([OLD, ADVANTAGES]).T.contiguous()
    step = policy_batch(old_log_probs=table[:, 0], advantages=table[:, 1])
    assert step.old_log_probs.data_ptr() == table.data_ptr()
    assert step.advantages.tolist() == ADVANTAGES


@pytest.mark.parametrize("make", [lambda: torch.tensor([-1.0]).expand(5), lambda: torch.ones(3).as_strided((5,), (0,))])
def test_overlapping_views_are_materialised(make: Callable[[], Tensor]) -> None:
    given = make()
    step = policy_batch(advantages=given)
    held = step.advantages
    assert held.data_ptr() != given.data_ptr()
    held[0] = 7.0
    assert held.tolist() == [7.0, *given[1:].tolist()]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.zeros(3, 4), False),
        (lambda: torch.zeros(3, 4).T, False),
        (lambda: torch.zeros(8)[::2], False),
        (lambda: torch.zeros(2, 3, 4).permute(2, 0, 1)[:, :1], False),
        (lambda: torch.zeros(1).expand(1), False),
        (lambda: torch.zeros(0).expand(0), False),
        (lambda: torch.zeros(()), False),
        (lambda: torch.zeros(4, 1).expand(4, 1), False),
        (lambda: torch.zeros(1).expand(2), True),
        (lambda: torch.zeros(4, 1).expand(4, 3), True),
        (lambda: torch.zeros(9).unfold(0, 3, 1), True),
        (lambda: torch.zeros(9).unfold(0, 3, 3), False),
        (lambda: torch.zeros(9).as_strided((2, 2), (1, 1)), True),
    ],
)
def test_overlap(make: Callable[[], Tensor], expected: bool) -> None:
    assert has_overlap(make()) is expected


def test_a_small_view_does_not_pin_a_huge_storage() -> None:
    huge = torch.zeros(2**22 + 1000)
    step = policy_batch(advantages=huge[-5:], old_log_probs=torch.tensor(OLD))
    assert step.advantages.untyped_storage().nbytes() == 20
    assert step.repairs == {"advantages: copied out of a larger storage": 5}
    half = torch.zeros(20)
    assert policy_batch(advantages=half[:5]).advantages.data_ptr() == half.data_ptr()


def test_inference_tensors_are_cloned_into_ordinary_ones() -> None:
    with torch.inference_mode():
        made = {name: torch.tensor(values) for name, values in FIELDS.items()}
        inside = PolicyBatch(**fields(**made))
    outside = PolicyBatch(**fields(**made))
    for step in (inside, outside):
        for name in (*FIELDS, "loss_mask"):
            assert not getattr(step, name).is_inference()
        for _ in range(2):
            trained(step)
        step.verify()


def test_the_life_cycle_under_inference_mode_gives_ordinary_tensors() -> None:
    step = policy_batch()
    with torch.inference_mode():
        made = [
            step.select([1, 0]),
            step.weighted("token-mean"),
            step.pad_to(3),
            PolicyBatch.concat([step, step.select([1, 0])]),
            step.to("cpu"),
            *step.split(samples=1),
        ]
    for batch in made:
        names = [name for name, spec in type(batch).__plan__.items() if spec.is_tensor and batch.has(name)]
        assert not [name for name in names if getattr(batch, name).is_inference()]


def test_grad_mode_stays_as_it_is() -> None:
    with torch.no_grad():
        policy_batch().weighted("token-mean").select([1, 0])
        assert not torch.is_grad_enabled()
        bound = policy_batch().bind(log_probs=live())
        assert not bound.select([1, 0]).log_probs.requires_grad
    with torch.inference_mode():
        policy_batch().select([1, 0])
        assert torch.is_inference_mode_enabled()


def test_no_warning_for_what_is_legal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy_batch(old_log_probs=live(), advantages=scalars(ADVANTAGES)[0])
