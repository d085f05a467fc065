"""On-policy distillation on the sampled token, as objectives of ``policy_loss``.

All of them are policy gradients whose advantage is the teacher's log-prob minus the student's. Their losses are
surrogates: the gradient is meant, the value is not a KL. The reverse KL itself is the metric ``reverse_kl``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.kl import k3
from rollout_contract.kernels.policy import score_function
from rollout_contract.kernels.ratio import bounded
from rollout_contract.kernels.reverse_kl import front_loaded_weights
from rollout_contract.kernels.trust_region import probability_shift
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.objectives.observe import bound_metrics, ratio_metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import OPDBatch, RolloutTeacherBatch, TeacherBatch


class SampledReverseKL(Objective):
    """sg(l - l_teacher) l: the score-function gradient of KL(student || teacher) on the sampled token.

    It equals k2 against the teacher up to the value. It assumes that the current policy sampled the tokens; importance
    weights of the batch multiply it.
    """

    name = "sampled_reverse_kl"
    formula = "L = sg(l - l_teacher) l"
    paper = "https://thinkingmachines.ai/blog/on-policy-distillation"
    known_as: ClassVar[Mapping[str, str]] = {
        "TRL": "(experimental.sdpo, experimental.sdft: distillation_mode=sampled_token)"
    }
    reads: ClassVar[type[RolloutBatch]] = TeacherBatch

    def terms(self, batch: TeacherBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        gap = _teacher_gap(batch, log_probs)
        return Terms(-gap * log_probs, Metrics(_reverse_kl_metric(gap, batch.loss_mask)))


class WeightedReverseKL(Objective):
    """sg(w) sg(l - l_teacher) l with w = min(exp(l - l_old), weight_max): several updates on the same tokens.

    Attributes:
        weight_max: upper bound of the fixed importance weight; None: unbounded.
        log_ratio_bound: the log-ratio is bounded to +-this, in nats, before exp.
    """

    name = "weighted_reverse_kl"
    formula = "w = sg(min(exp(l - l_old), weight_max)); L = w sg(l - l_teacher) l"
    paper = "https://thinkingmachines.ai/blog/on-policy-distillation"
    known_as: ClassVar[Mapping[str, str]] = {
        "TRL": "(experimental.sdpo: distillation_mode=sampled_token, distillation_is_clip)"
    }
    reads: ClassVar[type[RolloutBatch]] = OPDBatch

    weight_max: PositiveFloat | None = 2.0
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: OPDBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        gap = _teacher_gap(batch, log_probs)
        log_ratio = log_probs.detach() - read(batch, "old_log_probs", like=log_probs)
        ratio = bounded(log_ratio, self.log_ratio_bound).exp()
        top = float("inf") if self.weight_max is None else self.weight_max
        found = _reverse_kl_metric(gap, mask) | bound_metrics(ratio, 0.0, top, mask)
        found |= ratio_metrics(log_ratio, mask, self.log_ratio_bound)
        return Terms(score_function(log_probs, gap, ratio.clamp(max=top)), Metrics(found))


class RolloutReverseKL(Objective):
    """-keep sg(l_teacher - l) exp(l - l_rollout) + drift (l - l_rollout)^2: the ratio to the sampler, live.

    Attributes:
        delta_low: a token whose probability fell by more than this has no policy gradient; 0.2 in prime-rl. None, as in
            AReaL: every token keeps it.
        drift: weight of the squared log-ratio at every trained token; 1e-3 in prime-rl, 0 in AReaL.
        log_ratio_bound: the log-ratio is bounded to +-this, in nats, before exp; none in either trainer.
    """

    name = "rollout_reverse_kl"
    formula = "L = -keep sg(l_teacher - l) exp(l - l_rollout) + drift (l - l_rollout)^2; drop if p - q < -delta_low"
    paper = "https://github.com/PrimeIntellect-ai/prime-rl"
    known_as: ClassVar[Mapping[str, str]] = {
        "prime-rl": "algo.type=opd | opsd",
        "AReaL": "(rl_loss_weight=0 with a teacher)",
    }
    reads: ClassVar[type[RolloutBatch]] = RolloutTeacherBatch
    correction: ClassVar[Consumption] = "refuses"

    delta_low: NonNegativeFloat | None = None
    drift: NonNegativeFloat = 0.0
    log_ratio_bound: PositiveFloat | None = 20.0

    def terms(self, batch: RolloutTeacherBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        rollout_log_probs, gap = read(batch, "rollout_log_probs", like=log_probs), _teacher_gap(batch, log_probs)
        dropped = probability_shift(log_probs, rollout_log_probs) < -(2.0 if self.delta_low is None else self.delta_low)
        log_ratio = log_probs - rollout_log_probs
        loss = (-gap * bounded(log_ratio, self.log_ratio_bound).exp()).where(~dropped, 0.0)
        if self.drift:
            loss = loss + self.drift * log_ratio.square()
        mismatch = k3(-log_ratio.detach())
        found = _reverse_kl_metric(gap, mask) | ratio_metrics(log_ratio, mask, self.log_ratio_bound)
        found |= {
            "dropped_fraction": metrics.fraction(dropped, mask),
            "mismatch_k3_dropped": metrics.mean(mismatch, mask & dropped),
            "mismatch_k3_kept": metrics.mean(mismatch, mask & ~dropped),
        }
        return Terms(loss, Metrics(found))


class FrontLoadedReverseKL(Objective):
    """-l w a with a = l_teacher - l_rollout and w = 1 + gamma (1 - share of |a| before the token): IW-OPD.

    Early tokens decide about the rest of a response, so they weigh up to 1 + gamma.

    Attributes:
        gamma: how much more the first token weighs than what follows the last.
        eps: smallest total |a| of a response to divide by.
    """

    name = "front_loaded_reverse_kl"
    formula = "a = l_teacher - l_rollout; w_t = 1 + gamma (1 - sum_{s<t} |a_s| / sum_s |a_s|); L = -l w a"
    paper = "arXiv:2606.22600"
    known_as: ClassVar[Mapping[str, str]] = {"TRL": "(experimental.iw_opd)"}
    reads: ClassVar[type[RolloutBatch]] = RolloutTeacherBatch

    gamma: NonNegativeFloat = 1.0
    eps: PositiveFloat = 1e-8

    def terms(self, batch: RolloutTeacherBatch, /) -> Terms:
        log_probs, mask = read(batch, "log_probs"), batch.loss_mask
        teacher = read(batch, "teacher_log_probs", like=log_probs)
        gap = teacher - read(batch, "rollout_log_probs", like=log_probs)
        sample_ids = batch.layout.sample_ids(mask.device)
        weights = front_loaded_weights(gap.abs(), sample_ids, len(batch), self.gamma, self.eps)
        found = _reverse_kl_metric(teacher - log_probs.detach(), mask)
        return Terms(score_function(log_probs, gap, weights), Metrics(found))


def _teacher_gap(batch: TeacherBatch, log_probs: Tensor) -> Tensor:
    """[tokens] sg(l_teacher - l): the advantage that the teacher gives the sampled token."""
    return read(batch, "teacher_log_probs", like=log_probs) - log_probs.detach()


def _reverse_kl_metric(gap: Tensor, mask: Tensor) -> dict[str, Metric]:
    return {"reverse_kl": metrics.mean(-gap, mask)}
