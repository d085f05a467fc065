"""Several teachers: one of them per sample, or all of them with weights."""

from __future__ import annotations

import torch

from rollout_contract.advantages.estimator import fixed
from rollout_contract.losses.inputs import read, require
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import TeachersBatch


def mixed_teacher(batch: TeachersBatch) -> FixedTensor:
    """[tokens] one teacher that stands for all, for the field ``teacher_log_probs``: sum_k weight_k l_k.

    With weights that sum to 1, the reverse KL to it is the weighted mean of the reverse KLs to the teachers. One-hot
    weights choose a teacher per sample, as MOPD does by domain (arXiv:2601.02780). A teacher with weight 0 is not read,
    so what stands in for its score has no influence.

    Args:
        batch: ``teachers_log_probs`` [tokens, teachers] and ``teacher_weights`` [batch, teachers].

    Returns:
        A constant; 0 at masked-out tokens.
    """
    require(batch, TeachersBatch, "mixed_teacher")
    with torch.no_grad():
        log_probs = read(batch, "teachers_log_probs")
        weights = batch.layout.expand(read(batch, "teacher_weights", like=log_probs))
        return fixed((weights * log_probs.where(weights != 0, 0.0)).sum(-1))
