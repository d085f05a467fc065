"""Likelihood objectives: supervised fine-tuning, and the likelihood of a step's successful responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.losses.inputs import read, require
from rollout_contract.losses.loss import Consumption
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Objective, Terms
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import LiveBatch, PositiveBatch, RewardBatch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class NLL(Objective):
    """-log_probs: cross entropy of the sampled, or given, tokens; supervised fine-tuning."""

    name = "nll"
    formula = "L = -l"
    paper = "https://en.wikipedia.org/wiki/Cross-entropy"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--loss-type sft_loss",
        "slime": "--loss-type sft_loss",
        "verl": "(sft_loss)",
        "OpenRLHF": "(SFTLoss)",
        "prime-rl": "algo.type=sft",
        "NeMo-RL": "(NLLLossFn)",
        "SkyRL": "policy_loss_type=cross_entropy",
        "Tinker": "loss_fn=cross_entropy",
    }
    reads: ClassVar[type[RolloutBatch]] = LiveBatch

    def terms(self, batch: LiveBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        nll = metrics.mean(-log_probs, batch.loss_mask)
        return Terms(-log_probs, Metrics({"nll": nll}))


class PositiveNLL(Objective):
    """-log_probs over the responses with a positive reward only: VAPO's imitation term (arXiv:2504.05118).

    Add it to a policy loss: ``policy_loss(micro, PPOClip()) + 0.1 * policy_loss(micro, PositiveNLL())``. With
    "token-mean" it is the mean over the trained tokens of positive responses, whatever share of the step they are.
    ``positive_weights`` come from :func:`positive_example_weights`, once for the whole step, so no split changes it.
    """

    name = "positive_nll"
    formula = "L = -l 1[R > 0] (sum of weights) / (sum of weights where R > 0)"
    paper = "arXiv:2504.05118"
    known_as: ClassVar[Mapping[str, str]] = {"NeMo-RL": "positive_example_nll_weight"}
    reads: ClassVar[type[RolloutBatch]] = PositiveBatch
    correction: ClassVar[Consumption] = "ignores"

    def terms(self, batch: PositiveBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        weights = read(batch, "positive_weights", like=log_probs)
        nll = metrics.mean(-log_probs, batch.loss_mask & (weights > 0))
        return Terms(-weights * log_probs, Metrics({"positive_nll": nll}))


def positive_example_weights(
    batch: RewardBatch, threshold: float = 0.0, *, group: ProcessGroup | None = None
) -> Tensor:
    """[tokens] what ``PositiveNLL`` multiplies with: 0, or for a sample whose reward is above ``threshold`` a constant.

    The constant makes the weights of the loss sum to the same over the positive samples alone as over all samples.
    Call it on the whole step, before any split, and after ``weighted`` unless the aggregation is a plain sum or token
    mean. A step without positive samples gets 0 everywhere.

    Args:
        batch: with ``rewards`` [batch].
        threshold: rewards above it are positive.
        group: data-parallel ranks that hold the other parts of the step.
    """
    require(batch, RewardBatch, "positive_example_weights")
    mask = batch.loss_mask
    weights = read(batch, "loss_weights") if batch.has("loss_weights") else mask.to(torch.float64)
    positive = batch.layout.expand(read(batch, "rewards") > threshold) & mask
    sums = torch.stack([weights.sum(), weights.where(positive, 0.0).sum()])
    if group is not None:
        torch.distributed.all_reduce(sums, group=group)
    share = torch.where(sums[1] > 0, sums[0] / sums[1].where(sums[1] > 0, 1.0), 0.0)
    return share.to(read(batch, "rewards").dtype) * positive
