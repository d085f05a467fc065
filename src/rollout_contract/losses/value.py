"""The value loss: how far the critic's predictions are from the returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels.value import clip_values, value_error
from rollout_contract.losses.inputs import read
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.term import LossTerm, Terms, token_loss
from rollout_contract.metrics import Metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import ValueBatch


class CriticError(LossTerm):
    """The error of one prediction: V the live one, V_old that of the step's start, R the return.

    Attributes:
        clip: count the larger of two errors, that of V and that of V moved to within ``clip`` of V_old. A prediction
            that has moved further, in the direction of R, then has no gradient. None does not clip.
        half: d^2 / 2, so that the gradient is d (verl, OpenRLHF, NeMo-RL, AReaL, SkyRL, TRL); else d^2 (miles, slime),
            which doubles the critic's learning rate.
        huber_delta: beyond it the error grows linearly, so that one far return cannot take over (AReaL: 10). None keeps
            the square.
    """

    name: ClassVar[str] = "value"
    formula: ClassVar[str] = "max(e(V - R), e(V_old + clamp(V - V_old, -clip, clip) - R)), e(d) = d^2 / 2"
    paper: ClassVar[str] = "arXiv:1707.06347"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--value-clip (half=False)",
        "slime": "--value-clip (half=False)",
        "verl": "critic.cliprange_value",
        "OpenRLHF": "--value_clip",
        "NeMo-RL": "(MseValueLossFn)",
        "AReaL": "critic.eps_clip, critic.value_loss_type",
        "SkyRL": "value_clip",
        "TRL": "(PPOConfig: cliprange_value)",
    }
    reads: ClassVar[type[RolloutBatch]] = ValueBatch

    clip: PositiveFloat | None = None
    half: bool = True
    huber_delta: PositiveFloat | None = None

    def terms(self, batch: ValueBatch, /) -> Terms:
        """The error of every token [tokens], live in ``value_predictions``, and its metrics."""
        predictions, mask = read(batch, "value_predictions"), batch.loss_mask
        old_values, returns = read(batch, "values", like=predictions), read(batch, "returns", like=predictions)
        error = value_error(predictions, returns, self.huber_delta)
        found = {
            "value_error": metrics.mean((predictions - returns).detach().abs(), mask),
            "value_mean": metrics.mean(predictions, mask),
            "return_mean": metrics.mean(returns, mask),
        }
        if self.clip is not None:
            clipped = value_error(clip_values(predictions, old_values, self.clip), returns, self.huber_delta)
            found["value_clip_fraction"] = metrics.fraction(clipped > error, mask)
            found["value_moved_fraction"] = metrics.fraction((predictions - old_values).abs() > self.clip, mask)
            error = torch.maximum(error, clipped)
        loss: Tensor = error if self.half else 2.0 * error
        return Terms(loss, Metrics(found))


PLAIN_ERROR = CriticError()


def value_loss(batch: ValueBatch, error: CriticError = PLAIN_ERROR) -> Loss:
    """The weighted sum of the critic's error at each token (arXiv:1707.06347 for the clipped form).

    A correction's importance weights are not applied: the returns of a token are what they are. Its mask is.

    Args:
        batch: weighted, and bound with ``value_predictions`` [tokens], live.
        error: squared and unclipped by default.

    Returns:
        The loss, with the metrics ``value_loss``, ``value_error`` (mean absolute), ``value_mean``, ``return_mean`` and,
        when clipping, ``value_clip_fraction`` (share of tokens whose clipped error is the larger) and
        ``value_moved_fraction`` (share whose prediction has moved further than ``clip``; what miles reports).

    Raises:
        MissingFieldError: the batch is not weighted or bound, or lacks a field.
        LiveGraphError, MutatedError: a fixed field was edited after it was validated.
    """
    return token_loss("value_loss", batch, error, "ignores")
