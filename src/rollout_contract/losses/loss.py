"""A loss: a differentiable number, its metrics, and what became of the batch's correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rollout_contract.errors import Violation, violation_error
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.schema.batch import RolloutBatch

Consumption: TypeAlias = Literal["multiplies", "inside", "ignores", "refuses"]
"""What a term does with importance weights of the batch.

``multiplies``: each token's loss is multiplied by its weight. ``inside``: the term uses them in its own formula.
``ignores``: it is a term beside the policy gradient, as a KL is, and leaves them to that.
``refuses``: its ratio is already taken against the policy that made the rollouts, so a weight would count it twice.
"""


@dataclass(frozen=True, eq=False)
class Loss:
    """What a loss function returns; losses add up, and scale by numbers.

    Attributes:
        value: 0-dim, in the dtype of the log-probs. For the whole step the values of its micro-batches are added.
        metrics: detached, mergeable over micro-batches and ranks.
        has_correction: whether a batch that went into it carries correction weights.
        used_correction: whether one of the losses in it applied them.
    """

    value: Tensor
    metrics: Metrics = field(default_factory=Metrics)
    has_correction: bool = False
    used_correction: bool = False

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.value + other.value,
            self.metrics.merge({name: metric for name, metric in other.metrics.items() if name not in self.metrics}),
            self.has_correction or other.has_correction,
            self.used_correction or other.used_correction,
        )

    def __sub__(self, other: Loss) -> Loss:
        return self + -1.0 * other

    def __mul__(self, factor: float) -> Loss:
        return Loss(self.value * factor, self.metrics, self.has_correction, self.used_correction)

    __rmul__ = __mul__

    def __neg__(self) -> Loss:
        return -1.0 * self

    def backward(self, *, retain_graph: bool = False) -> None:
        """Run backward from the value.

        Raises:
            CorrectionError: a batch carries correction weights, but no loss in this sum applied them.
        """
        if self.has_correction and not self.used_correction:
            hint = "add the policy loss that shall be corrected, or do not call corrected()"
            wrong = Violation("correction_weights", "correction", "a loss that applies them", "none in this sum", hint)
            raise violation_error("Loss.backward", wrong)
        torch.autograd.backward(self.value, retain_graph=retain_graph)

    def __repr__(self) -> str:
        return f"Loss({', '.join(['value', *self.metrics])})"


def weighted_sum(
    batch: RolloutBatch,
    terms: Tensor,
    metrics: Mapping[str, Metric] | None = None,
    correction: Consumption = "ignores",
) -> Loss:
    """The loss of one number per token: the sum of weight x number. For loss functions of your own.

    Args:
        batch: gives the weights of the loss and, for ``multiplies``, the importance weights.
        terms: [tokens], made from what ``read`` gave; finite also where the mask is off.
        metrics: of this loss.
        correction: what the terms do with importance weights.
    """
    weights = read(batch, "loss_weights", like=terms)
    has_correction = batch.has("correction_weights")
    if correction == "multiplies" and has_correction:
        weights = weights * read(batch, "correction_weights", like=terms)
    used = has_correction and correction in ("multiplies", "inside")
    return Loss((weights * terms).sum(), Metrics(metrics), has_correction, used)
