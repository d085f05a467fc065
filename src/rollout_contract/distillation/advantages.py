"""On-policy distillation in the advantages: the reverse KL of the sampled token, as a constant.

Only the *sampled-token* reverse KL can be an advantage. A divergence over several outcomes does not depend on the token
that was sampled, so as a constant its expected gradient is zero: that one is a loss (:mod:`.topk`, :mod:`.full`).
"""

from __future__ import annotations

from torch import Tensor

from rollout_contract import metrics
from rollout_contract.advantages.estimator import Fraction, NonNegative, estimator, fixed
from rollout_contract.errors import Violation, violation_error
from rollout_contract.kernels.returns import Masked
from rollout_contract.kernels.reverse_kl import future_reverse_kl
from rollout_contract.losses.inputs import read, require
from rollout_contract.metrics import Metrics
from rollout_contract.roles import FixedTensor
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import OPDBatch, ReverseKLBatch

_THINKING_MACHINES = "https://thinkingmachines.ai/blog/on-policy-distillation"


def reverse_kl(batch: OPDBatch) -> FixedTensor:
    """[tokens] old student minus teacher, in nats: k1 of KL(student || teacher) on the sampled token, as a constant.

    0 at masked-out tokens. The teacher's scores stay where they are in the batch; only this copy moves.
    """
    require(batch, OPDBatch, "reverse_kl")
    old_log_probs = read(batch, "old_log_probs")
    return fixed((old_log_probs - read(batch, "teacher_log_probs", like=old_log_probs)).detach())


@estimator(
    formula="A_t - coef (l_old - l_teacher)_t",
    paper=_THINKING_MACHINES,
    known_as={
        "miles": "--use-opd",
        "slime": "--use-opd",
        "NeMo-RL": "grpo.adv_estimator.name=opd (coef=1, no advantages; MOPD, arXiv:2601.02780)",
        "Tinker": "kl_penalty_coef",
    },
)
def opd_advantages(batch: OPDBatch, advantages: Tensor | None = None, coef: NonNegative = 1.0) -> FixedTensor:
    """``advantages`` minus ``coef`` times the reverse KL of each sampled token.

    Apply it after the group normalisation of the task's advantages and before any whitening.

    Args:
        batch: with ``old_log_probs`` and ``teacher_log_probs``.
        advantages: [tokens] of the task; None distils alone. One number, or one per sample, is never broadcast.
        coef: nats to advantage.

    Returns:
        [tokens], for the field ``advantages``; 0 at masked-out tokens.

    Raises:
        ShapeError: the advantages are not one per response token.
    """
    return _minus(batch, advantages, coef * reverse_kl(batch))


@estimator(formula="A_t - coef reverse_kl_t", paper=_THINKING_MACHINES, known_as={"miles": "(opd_reverse_kl)"})
def reverse_kl_advantages(
    batch: ReverseKLBatch, advantages: Tensor | None = None, coef: NonNegative = 1.0
) -> FixedTensor:
    """:func:`opd_advantages` for a reverse KL that was computed elsewhere, for example by the teacher's server."""
    return _minus(batch, advantages, coef * read(batch, "reverse_kl"))


@estimator(
    formula="A_t = sum_{i >= t} gamma^(i - t) (l_teacher - l_old)_i [/ sum_{i >= t} gamma^(i - t)]",
    paper="arXiv:2306.08543",
    known_as={"TRL": "(MiniLLMConfig: rkl_advantage)"},
)
def minillm_advantages(
    batch: OPDBatch,
    gamma: Fraction = 1.0,
    length_normalised: bool = False,
    masked: Masked = "skip",
    from_start: bool = False,
    masked_weight: NonNegative = 0.0,
) -> FixedTensor:
    """MiniLLM: what a token does to the reverse KL of the rest of its response.

    The student's scores are the *old* ones, so the advantage is a constant. TRL builds it from the live ones, and its
    gradient then points elsewhere, although the loss has the same value.

    Args:
        batch: with ``old_log_probs`` and ``teacher_log_probs``.
        gamma: discount per token.
        length_normalised: divide by the discounted number of the tokens that are summed.
        masked: what a tool token is to the discount; ``step`` in TRL.
        from_start: discount by gamma^i with i counted from the start of the response, as TRL's code does without length
            normalisation (its documentation says gamma^(i - t)). Late tokens then count less.
        masked_weight: how much a masked token counts in the normaliser; TRL's 1e-4 makes the result depend on padding.

    Returns:
        [tokens], for the field ``advantages``; 0 at masked-out tokens.
    """
    mask, layout = batch.loss_mask, batch.layout
    sums = future_reverse_kl(
        -reverse_kl(batch),
        mask,
        layout.sample_ids(mask.device),
        layout.positions(mask.device),
        gamma,
        length_normalised=length_normalised,
        masked=masked,
        from_start=from_start,
        masked_weight=masked_weight,
    )
    return fixed(sums.where(mask, 0.0))


def reverse_kl_metrics(batch: OPDBatch | ReverseKLBatch) -> Metrics:
    """Over the trained tokens, in nats: ``reverse_kl`` (mean), ``reverse_kl_abs`` (mean size), ``reverse_kl_max``."""
    values: Tensor = reverse_kl(batch) if isinstance(batch, OPDBatch) else read(batch, "reverse_kl")
    mask = batch.loss_mask
    return Metrics(
        {
            "reverse_kl": metrics.mean(values, mask),
            "reverse_kl_abs": metrics.mean(values.abs(), mask),
            "reverse_kl_max": metrics.maximum(values, mask),
        }
    )


def _minus(batch: RolloutBatch, advantages: Tensor | None, penalty: Tensor) -> FixedTensor:
    """``advantages - penalty`` on the trained tokens, in the dtype of the penalty."""
    if advantages is None:
        return fixed(-penalty)
    _require_per_token(batch, advantages)
    return fixed(advantages.detach().to(penalty.dtype).where(batch.loss_mask, 0.0) - penalty)


def _require_per_token(batch: RolloutBatch, advantages: Tensor) -> None:
    tokens = batch.layout.num_tokens
    if advantages.shape != (tokens,):
        expected = f"[{tokens} tokens], one per response token"
        hint = "batch.layout.expand(per_sample) repeats one per sample; nothing is broadcast silently"
        wrong = Violation("advantages", "shape", expected, f"shape {list(advantages.shape)}", hint)
        raise violation_error("opd_advantages", wrong)
    if advantages.device != batch.device:
        wrong = Violation("advantages", "device", f"{batch.device}, where the batch is", str(advantages.device))
        raise violation_error("opd_advantages", wrong)
