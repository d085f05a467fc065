"""Steps that the KL tests share: three samples of three, two and one tokens, one of them masked out."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from rollout_contract import kl
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.loss import Loss
from rollout_contract.schemas import BehaviourKLBatch, ScoredKLBatch

LENGTHS = [3, 2, 1]
MASK = [1, 0, 1, 1, 1, 1]
LOG_PROBS = [-1.0, -9.0, -0.3, -2.5, -1.2, -0.7]
REFERENCE = [-2.0, -1.0, -0.3, -0.4, -1.9, -3.1]
OLD = [-1.1, -3.0, -0.2, -2.2, -1.5, -0.7]
ROLLOUT = [-1.3, -2.0, -0.4, -2.6, -1.1, -0.6]


class Step(ScoredKLBatch, BehaviourKLBatch):
    """What every KL estimator can read."""


def numbers(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def step(dtype: torch.dtype = torch.float64, **changes: Any) -> Step:
    """An unbound step with token-mean weights."""
    fields: dict[str, Any] = {
        "response_lengths": LENGTHS,
        "loss_mask": MASK,
        "ref_log_probs": numbers(REFERENCE, dtype),
        "old_log_probs": numbers(OLD, dtype),
        "rollout_log_probs": numbers(ROLLOUT, dtype),
    }
    return Step(**(fields | changes)).weighted("token-mean")


def live(values: list[float] = LOG_PROBS, dtype: torch.dtype = torch.float64) -> Tensor:
    return numbers(values, dtype).requires_grad_()


def quiet_kl_loss(batch: Any, estimator: Any) -> Loss:
    """``kl_loss`` without the warning about k1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kl_loss(batch, estimator)


PLAIN: list[kl.SampledKL] = [
    kl.K1(),
    kl.K2(),
    kl.K3(),
    kl.LowVarKL(),
    kl.AbsoluteKL(),
    kl.K1(input_bound=1.5, output_bound=1.0),
    kl.K3(input_bound=1.0, output_bound=0.5),
]
DERIVED: list[kl.KLEstimator] = [
    *(kl.StraightThroughKL(estimator=estimator) for estimator in PLAIN),
    *(kl.ScoreFunctionKL(estimator=estimator) for estimator in PLAIN),
    *(kl.UnbiasedKL(estimator=estimator) for estimator in PLAIN),
    kl.UnbiasedKL(level="sequence"),
    kl.UnbiasedKL(estimator=kl.K3(input_bound=1.0), cut_where_clamped=False),
    kl.UnbiasedKL(estimator=kl.K3(output_bound=0.5), weight_before_clamp=False),
    kl.BehaviourKL(),
]


def label(estimator: kl.KLEstimator) -> str:
    return repr(estimator)
