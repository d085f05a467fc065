"""Distillation on a few outcomes per token: losses with a live student side, never an advantage.

The set comes with the batch (``topk_ids``, and ``topk_mask`` where its size varies): the student's top-k, the
teacher's, or a combination (:func:`~rollout_contract.kernels.topk.topk_support`). The student's log-probs of it are
``score_logits(logits, batch.topk_ids).log_probs``: of the whole vocabulary, before any renormalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, NegativeFloat, PositiveFloat
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.distillation.term import DistributionTerm
from rollout_contract.errors import Violation, violation_error
from rollout_contract.kernels import topk as kernels
from rollout_contract.kernels.divergence import Interpolation, divergence, kl
from rollout_contract.kernels.kl import straight_through
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Terms
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import TopKBatch, TopKEntropyBatch


class TopKDivergence(DistributionTerm):
    """A divergence on the top-k set, with a rule for the mass outside it.

    Attributes:
        beta: 0 is forward, KL(teacher || student); 1 is reverse, KL(student || teacher).
        interpolation: between them, ``mixture`` (Jensen-Shannon) or ``linear``; see ``divergence_of_logits``.
        outside: ``tail``, the default: one more outcome for all the rest, so both sides still sum to 1 and agreement is
            the minimum (TRL's ``distillation_add_tail``). ``renormalise``: both sides are divided by their mass on the
            set; blind to how much mass lies outside, and identically 0 for one outcome, which is refused. ``ignore``:
            the plain sum over the set (NeMo-RL); it can be negative, and agreement is not its minimum.
        tail_floor: the log of the set's mass is at most minus this, so that the tail has a finite log.
    """

    name = "topk_divergence"
    formula = "D(S', T') with S', T' on the set, plus a tail outcome log(1 - P(set)) | renormalised | as they are"
    known_as: ClassVar[Mapping[str, str]] = {
        "TRL": "(experimental.sdpo, experimental.sdft: distillation_mode=topk_logits)",
        "NeMo-RL": "(DistillationLossFn: outside='ignore', interpolation='linear', beta = 1 - mixed_kl_weight)",
    }
    reads: ClassVar[type[RolloutBatch]] = TopKBatch

    beta: float = Field(default=1.0, ge=0.0, le=1.0)
    interpolation: Interpolation = "mixture"
    outside: kernels.Outside = "tail"
    tail_floor: PositiveFloat = 1e-7

    def terms(self, batch: TopKBatch, /) -> Terms:
        student, teacher, members = topk_inputs(batch)
        if self.outside == "renormalise" and student.shape[1] == 1:
            hint = 'take more outcomes, or outside="tail"'
            expected, found = "at least 2 outcomes when renormalised", "1: both sides are 1, the divergence always 0"
            raise violation_error("TopKDivergence", Violation("topk_ids", "shape", expected, found, hint))
        value = divergence(
            kernels.with_outside(student, members, self.outside, self.tail_floor),
            kernels.with_outside(teacher, members, self.outside, self.tail_floor),
            self.beta,
            self.interpolation,
        )
        return topk_terms(batch, value, student, teacher, members)


class FlooredTopKDivergence(DistributionTerm):
    """(1 - beta) forward + beta reverse on the set, the teacher's log-prob outside it being ``floor``.

    The reverse part then pays p (log p - floor) for every outcome outside, which the student's entropy gives without
    knowing the outcomes. At -100 nats this is a strong pull onto the set.

    Attributes:
        beta: 0 is forward, KL(teacher || student), which nothing outside concerns; 1 is reverse.
        floor: nats.
    """

    name = "floored_topk_divergence"
    formula = "(1 - beta) sum_set t (log t - log s) + beta (sum_set s (log s - log t) + sum_rest s (log s - floor))"
    known_as: ClassVar[Mapping[str, str]] = {"NeMo-RL": "(DistillationLossFn: zero_outside_topk)"}
    reads: ClassVar[type[RolloutBatch]] = TopKEntropyBatch

    beta: float = Field(default=1.0, ge=0.0, le=1.0)
    floor: NegativeFloat = -100.0

    def terms(self, batch: TopKEntropyBatch, /) -> Terms:
        student, teacher, members = topk_inputs(batch)
        student_inside = kernels.with_outside(student, members, "ignore")
        teacher_inside = kernels.with_outside(teacher, members, "ignore")
        value = (1 - self.beta) * kl(teacher_inside, student_inside)
        if self.beta:
            outside = kernels.floor_outside(student, members, read(batch, "entropy", like=student), self.floor)
            value = value + self.beta * (kl(student_inside, teacher_inside) + outside)
        return topk_terms(batch, value, student, teacher, members)


class TopKReverseKL(DistributionTerm):
    """sum over the set of w (log s - log t), with the gradient sum sg(w (log s - log t)) d log s.

    For the student's probabilities as weights that is the gradient of the reverse KL. For others the plain gradient
    would be w, which only pushes the set down, whatever the teacher says; this one vanishes where both sides agree.

    Attributes:
        weights: the student's probabilities, the teacher's, or the same for every outcome.
        renormalise: weights sum to 1 over the set; off, they are the raw probabilities (or 1), as miles has it for xor.
    """

    name = "topk_reverse_kl"
    formula = "sum_set w (log s - log t); w = softmax over the set of log s | log t | 0, or the raw exp of them"
    paper = "https://github.com/radixark/miles"
    known_as: ClassVar[Mapping[str, str]] = {"miles": "(--opd-top-k-strategy, --opd-reward-weight-mode)"}
    reads: ClassVar[type[RolloutBatch]] = TopKBatch

    weights: Literal["student", "teacher", "uniform"] = "student"
    renormalise: bool = True

    def terms(self, batch: TopKBatch, /) -> Terms:
        student, teacher, members = topk_inputs(batch)
        by = {"student": student, "teacher": teacher, "uniform": teacher.new_zeros(teacher.shape)}[self.weights]
        weights = kernels.set_weights(by.detach(), members, self.renormalise)
        gaps = weights * (student.detach() - teacher)
        value = straight_through(gaps.sum(-1), (gaps * student).sum(-1))
        return topk_terms(batch, value, student, teacher, members)


def topk_inputs(batch: TopKBatch) -> tuple[Tensor, Tensor, Tensor]:
    """(student log-probs, live; teacher log-probs; which entries belong to the set), all [tokens, topk].

    At masked-out tokens and entries outside the set both log-probs are 0, whatever the batch holds there.
    """
    student = read(batch, "topk_log_probs")
    teacher = read(batch, "teacher_topk_log_probs", like=student)
    members = batch.loss_mask.unsqueeze(-1).expand(student.shape)
    if batch.has("topk_mask"):
        members = read(batch, "topk_mask")
    return student.where(members, 0.0), teacher.where(members, 0.0), members


def topk_terms(batch: TopKBatch, value: Tensor, student: Tensor, teacher: Tensor, members: Tensor) -> Terms:
    """The terms with their metrics over the trained tokens.

    ``topk_divergence``: mean of the term, in nats. ``topk_student_mass``, ``topk_teacher_mass``: mean probability of
    the set, which says how much the loss does not see. ``topk_size``: mean number of outcomes.
    """
    mask = batch.loss_mask
    found = {
        "topk_divergence": metrics.mean(value, mask),
        "topk_student_mass": metrics.mean(kernels.set_weights(student, members, False).sum(-1), mask),
        "topk_teacher_mass": metrics.mean(kernels.set_weights(teacher, members, False).sum(-1), mask),
        "topk_size": metrics.mean(members.sum(-1).to(student.dtype), mask),
    }
    return Terms(value, Metrics(found))
