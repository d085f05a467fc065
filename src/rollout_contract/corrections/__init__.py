"""Corrections for the mismatch between the policy that sampled and the one that trains.

A correction is any callable from a batch to a :class:`Correction`. It is applied to the whole step, before the split::

    step = step.corrected(Truncate(high=2.0))
    step = step.corrected(Truncate(high=2.0) & Reject(statistic="k3", level="sequence-mean", high=0.01))

Weights are always made from ``old_log_probs`` and ``rollout_log_probs``, never from the current policy: the ratio to
the current policy is the objective's own, and using it here would count the step twice.

==========================  ==================================================================================
three policies              ``old_log_probs`` are scored by the trainer before the step: :class:`Truncate` & co.
bypass                      ``old_log_probs=rollout_log_probs``: every ratio is 1 and no correction is needed
no scores of the trainer    :func:`proximal_log_probs` interpolates ``old_log_probs`` by weight versions
==========================  ==================================================================================
"""

from rollout_contract.corrections.correction import Correction as Correction
from rollout_contract.corrections.icepop import IcePop as IcePop
from rollout_contract.corrections.m2po import M2PO as M2PO
from rollout_contract.corrections.normalize import Normalize as Normalize
from rollout_contract.corrections.proximal import proximal_log_probs as proximal_log_probs
from rollout_contract.corrections.reject import Reject as Reject
from rollout_contract.corrections.rule import Combined as Combined
from rollout_contract.corrections.rule import CorrectionRule as CorrectionRule
from rollout_contract.corrections.truncate import Truncate as Truncate
