"""Faults that users of trainers reported: distillation. Each test names the public report and uses its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rollout_contract import distillation, settings
from rollout_contract.distillation import (
    FullVocabulary,
    SampledReverseKL,
    TopKDivergence,
    distillation_loss,
    divergence_of_hidden_states,
    divergence_of_logits,
    opd_advantages,
    reverse_kl_advantages,
)
from rollout_contract.errors import (
    ContractError,
    DeviceError,
    LengthError,
    MetadataError,
    MissingFieldError,
    NoGraphError,
    ShapeError,
)
from rollout_contract.log_probs import score_logits
from rollout_contract.losses.policy import policy_loss
from rollout_contract.objectives import Reinforce
from rollout_contract.sampling import Sampling
from rollout_contract.schemas import (
    AdvantageBatch,
    DivergenceBatch,
    KLBatch,
    OPDBatch,
    ReverseKLBatch,
    TopKBatch,
)


class Distilled(AdvantageBatch, OPDBatch):
    """A policy gradient towards a teacher."""


def leaf(values: list[float]) -> Tensor:
    return torch.tensor(values, requires_grad=True)


# -- 1: graphs that must not be there ----------------------------------------------------------------------------------


def test_case_001_no_gradient_reaches_teacher_or_old_student() -> None:
    """miles#1966: the advantage carried the graphs of both; wrong gradients [-0.10, 0.15] and [0.10, -0.15]."""
    student, teacher, task = leaf([0.0, 1.0]), leaf([0.0, 0.0]), torch.tensor([2.0, 2.0])
    with settings(level="structure"):  # the report's numbers are no log-probs
        step = OPDBatch(response_lengths=[2], loss_mask=[1, 1], old_log_probs=student, teacher_log_probs=teacher)
        advantages = opd_advantages(step, task, coef=0.5)
        assert advantages.tolist() == [2.0, 1.5]
        assert not advantages.requires_grad
        assert step.old_log_probs.grad_fn is None
        assert step.teacher_log_probs.grad_fn is None
        live = leaf([0.2, -0.3])
        batch = step.extend(Distilled, advantages=advantages).weighted("sum").bind(log_probs=live)
        (-1.0 * policy_loss(batch, Reinforce())).backward()
    assert live.grad is not None
    assert live.grad.tolist() == advantages.tolist()
    assert student.grad is None
    assert teacher.grad is None


def test_case_001_precomputed_reverse_kl_and_advantages_are_cut_too() -> None:
    """miles#1966, the rest of the fix: direct callers bypass the place where scores are stored."""
    batch = ReverseKLBatch(response_lengths=[2], loss_mask=[1, 1], reverse_kl=leaf([0.0, 1.0]))
    advantages = reverse_kl_advantages(batch, leaf([2.0, 2.0]), coef=0.5)
    assert advantages.tolist() == [2.0, 1.5]
    assert not advantages.requires_grad


def test_case_001_the_student_may_be_the_live_policy_itself() -> None:
    """The same tensor as current and old policy: right gradient [-1.9, -2.15], wrong [-1.8, -2.3]."""
    live = leaf([0.2, -0.3])
    with settings(level="structure"):
        step = OPDBatch(response_lengths=[2], loss_mask=[1, 1], old_log_probs=live, teacher_log_probs=torch.zeros(2))
        advantages = opd_advantages(step, torch.tensor([2.0, 2.0]), coef=0.5)
        batch = step.extend(Distilled, advantages=advantages).weighted("sum").bind(log_probs=live)
        policy_loss(batch, Reinforce()).backward()
    torch.testing.assert_close(live.grad, torch.tensor([-1.9, -2.15]))


# -- 20: devices -------------------------------------------------------------------------------------------------------


def test_case_020_a_teacher_elsewhere_stays_there_and_is_moved_only_inside() -> None:
    """trl#2584 and others: a teacher on the CPU or on another rank's GPU. Fake tensors stand for the devices."""
    with FakeTensorMode(), settings(level="structure"), torch.no_grad():
        here = torch.zeros(3, device="cuda:0")
        batch = OPDBatch(
            response_lengths=[3],
            loss_mask=torch.ones(3, dtype=torch.bool, device="cuda:0"),
            old_log_probs=here,
            teacher_log_probs=torch.zeros(3, device="cpu"),
        )
        assert batch.device == torch.device("cuda:0")
        assert batch.teacher_log_probs.device.type == "cpu"
        assert opd_advantages(batch).device == torch.device("cuda:0")
        bound = batch.weighted("sum").bind(log_probs=here.clone())
        assert SampledReverseKL().terms(bound).loss.device == torch.device("cuda:0")
        assert bound.teacher_log_probs.device.type == "cpu"
        assert batch.to("cuda:0").teacher_log_probs.device == torch.device("cuda:0")


def test_case_020_any_other_field_elsewhere_is_refused() -> None:
    """trl#2584: no silent copies; the message names the field and both devices."""
    with FakeTensorMode(), settings(level="structure"), torch.no_grad(), pytest.raises(DeviceError) as caught:
        KLBatch(
            response_lengths=[3],
            loss_mask=torch.ones(3, dtype=torch.bool, device="cuda:0"),
            ref_log_probs=torch.zeros(3, device="cuda:1"),
        )
    assert (caught.value.field, caught.value.found) == ("ref_log_probs", "cuda:1")
    assert "cuda:0" in caught.value.expected


def test_case_020_the_teachers_chunks_are_moved_to_the_student() -> None:
    """OSD#9: a teacher's logits on another device than the student's."""
    with FakeTensorMode(), torch.no_grad():
        student, teacher = torch.zeros(5, 7, device="cuda:0"), torch.zeros(5, 7, device="cpu")
        assert divergence_of_logits(student, teacher, beta=0.5, chunk_size=2).device == torch.device("cuda:0")


# -- 73, 74, 76: the same tokens, scored alike -------------------------------------------------------------------------


def test_case_073_teacher_and_student_are_scored_at_the_same_temperature() -> None:
    """slime#2085: the teacher scored at temperature 0 while the student sampled at another one."""
    fields: dict[str, Any] = {"response_lengths": [1], "loss_mask": [1]}
    fields |= {"old_log_probs": torch.tensor([-1.0]), "teacher_log_probs": torch.tensor([-1.0])}
    with pytest.raises(MetadataError, match="teacher_log_probs"):
        OPDBatch(
            **fields,
            sampling={"old_log_probs": Sampling(temperature=0.7), "teacher_log_probs": Sampling(temperature=1.0)},
        )
    with pytest.raises(ContractError, match="greater than 0"):
        OPDBatch(**fields, sampling={"teacher_log_probs": {"temperature": 0.0}})  # type: ignore[dict-item]
    with pytest.raises(MetadataError, match="above 0"):
        score_logits(torch.zeros(1, 3), torch.tensor([0]), temperature=0.0)


def test_case_074_a_teacher_that_tokenised_again_has_another_length() -> None:
    """slime#1128: text was scored, not token ids."""
    fields: dict[str, Any] = {"response_lengths": [2, 3], "loss_mask": [1] * 5, "old_log_probs": -torch.ones(5)}
    with pytest.raises(LengthError) as caught:
        OPDBatch(**fields, teacher_log_probs=[[-1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]])
    assert (caught.value.field, caught.value.row) == ("teacher_log_probs", 1)
    with pytest.raises(ShapeError, match="teacher_log_probs"):
        OPDBatch(**fields, teacher_log_probs=-torch.ones(6))


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_case_074_vocabularies_of_different_size_are_refused() -> None:
    """open-instruct#1847: ids beyond the teacher's vocabulary are out of range."""
    with pytest.raises(ShapeError, match="different tokenizers need an alignment first"):
        divergence_of_logits(torch.zeros(2, 8), torch.zeros(2, 7), beta=0.0)


def test_case_076_every_field_is_cut_by_one_call() -> None:
    """miles#1754: the teacher's scores stayed whole while the student's were sliced."""
    whole = torch.arange(6.0)
    step = OPDBatch(
        response_lengths=[1, 2, 3], loss_mask=[1] * 6, old_log_probs=-whole, teacher_log_probs=-2.0 * whole
    ).weighted("sum")
    advantages = opd_advantages(step)
    parts = step.split(samples=1)
    assert [part.teacher_log_probs.tolist() for part in parts] == [[0.0], [-2.0, -4.0], [-6.0, -8.0, -10.0]]
    assert torch.equal(torch.cat([opd_advantages(part) for part in parts]), advantages)
    with pytest.raises(ShapeError):
        opd_advantages(parts[2], advantages)


# -- 77: which way the divergence goes ---------------------------------------------------------------------------------

STUDENT, UNIFORM = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)
GOLDEN = [(0.0, 0.4338), (1.0, 0.3278)]


@pytest.mark.parametrize(("beta", "expected"), GOLDEN)
def test_case_077_beta_0_is_forward_and_beta_1_is_reverse(beta: float, expected: float) -> None:
    """trl#3043: beta was swapped. Student softmax[2, 0], teacher uniform."""
    assert divergence_of_logits(STUDENT, UNIFORM, beta=beta).item() == pytest.approx(expected, abs=1e-4)


def test_case_077_beta_one_half_is_jensen_shannon() -> None:
    """Worked out by hand: p = (.8808, .1192), q = (.5, .5), m = (.6904, .3096)."""
    p, q, m = (0.88080, 0.11920), (0.5, 0.5), (0.69040, 0.30960)
    by_hand = sum(0.5 * b * float(torch.tensor(b / c).log()) for b, c in zip(q, m, strict=True))
    by_hand += sum(0.5 * a * float(torch.tensor(a / c).log()) for a, c in zip(p, m, strict=True))
    assert divergence_of_logits(STUDENT, UNIFORM, beta=0.5).item() == pytest.approx(by_hand, abs=1e-4)
    assert divergence_of_logits(UNIFORM, STUDENT, beta=0.5).item() == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_case_077_the_fused_path_is_the_plain_one(beta: float) -> None:
    """Liger#974, #862: the fused path added a hard-label term and a temperature of its own."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, teacher_hidden, teacher_weight = (
        torch.randn(shape, generator=generator) for shape in ((5, 3), (7, 3), (5, 4), (7, 4))
    )
    fused = divergence_of_hidden_states(hidden, weight, teacher_hidden, teacher_weight, beta=beta, temperature=2.0)
    plain = divergence_of_logits(hidden @ weight.T, teacher_hidden @ teacher_weight.T, beta=beta, temperature=2.0)
    torch.testing.assert_close(fused, plain)


def test_case_077_ignored_tokens_leave_numerator_and_denominator() -> None:
    """Liger#974: the ignored label was not ignored, and the divisor was the batch size."""
    divergence = torch.tensor([1.0, 100.0, 3.0], requires_grad=True)
    batch = DivergenceBatch(response_lengths=[3], loss_mask=[1, 0, 1]).weighted("token-mean")
    loss = distillation_loss(batch.bind(divergence=divergence), FullVocabulary())
    assert loss.value.item() == 2.0


# -- 78: a divergence over several outcomes is no advantage ------------------------------------------------------------


def test_case_078_as_a_constant_it_would_train_nothing() -> None:
    """miles#2362: a number that does not depend on the sampled token has an expected gradient of zero."""
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5], requires_grad=True)
    probs = logits.detach().softmax(-1)
    constant = 0.7  # a top-k divergence of this position
    expected = sum(
        float(p) * torch.autograd.grad(constant * logits.log_softmax(-1)[token], logits)[0]
        for token, p in enumerate(probs)
    )
    torch.testing.assert_close(expected, torch.zeros(4), atol=1e-6, rtol=0.0)


def topk(**late: Tensor) -> TopKBatch:
    batch = TopKBatch(
        response_lengths=[2],
        loss_mask=[1, 1],
        topk_ids=torch.tensor([[0, 1], [2, 3]]),
        teacher_topk_log_probs=torch.tensor([[-0.5, -1.0], [-1.0, -2.0]]),
    )
    return batch.weighted("sum").bind(**late)


def test_case_078_the_types_do_not_allow_it() -> None:
    """The student's side must be live, and no estimator of advantages takes such a batch."""
    with pytest.raises(NoGraphError, match="topk_log_probs"):
        topk(topk_log_probs=-torch.ones(2, 2))
    live = topk(topk_log_probs=(-torch.ones(2, 2)).requires_grad_())
    with pytest.raises(MissingFieldError):
        opd_advantages(live)  # type: ignore[arg-type]
    with pytest.raises(MissingFieldError):
        reverse_kl_advantages(live)  # type: ignore[arg-type]
    assert not [name for name in vars(distillation) if "advantage" in name and "topk" in name.lower()]


def test_case_078_as_a_loss_it_trains() -> None:
    """The gradient exists and points from the teacher's disfavoured outcomes to the favoured ones."""
    logits = torch.zeros(2, 5, requires_grad=True)
    batch = topk(topk_log_probs=score_logits(logits, torch.tensor([[0, 1], [2, 3]])).log_probs)
    distillation_loss(batch, TopKDivergence()).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] < logits.grad[0, 1]
    assert logits.grad.abs().sum() > 0.1


def test_case_078_one_renormalised_outcome_is_refused() -> None:
    """It is identically 0, whatever both sides say."""
    batch = TopKBatch(
        response_lengths=[1], loss_mask=[1], topk_ids=torch.tensor([[0]]), teacher_topk_log_probs=torch.tensor([[-0.5]])
    )
    bound = batch.weighted("sum").bind(topk_log_probs=torch.tensor([[-3.0]], requires_grad=True))
    with pytest.raises(ShapeError, match="the divergence always 0"):
        distillation_loss(bound, TopKDivergence(outside="renormalise"))
