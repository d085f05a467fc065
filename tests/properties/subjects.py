"""Everything that must keep the invariants: each loss of the library, and each calculation of fixed tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from rollout_contract import corrections, kl, policy_loss
from rollout_contract.advantages import ESTIMATORS, LengthAdaptive, place_rewards, reward_metrics, whiten
from rollout_contract.corrections import Correction, IcePop, Normalize, Reject, Truncate
from rollout_contract.distillation import (
    FlooredTopKDivergence,
    FullVocabulary,
    TopKDivergence,
    TopKReverseKL,
    distillation_loss,
    mixed_teacher,
    reverse_kl,
    reverse_kl_metrics,
)
from rollout_contract.kl_reward import kl_penalty, kl_penalty_metrics, penalised_rewards
from rollout_contract.losses.entropy import entropy_bonus, entropy_metrics
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.value import CriticError, value_loss
from rollout_contract.metrics import Metrics
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import positive_example_weights
from rollout_contract.objectives.base import Objective
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import (
    EntropyBatch,
    KLRewardBatch,
    ObservedEntropyBatch,
    OPDBatch,
    PolicyBatch,
    RewardBatch,
    ScoredKLBatch,
    TeachersBatch,
    TISBatch,
    ValueBatch,
)
from tests.properties.objective_references import KINDS, REFERENCES


@dataclass(frozen=True)
class LossSubject:
    """A loss.

    Attributes:
        name: the test's id.
        schema: what it reads, as a schema of the fields that a batch for it has.
        run: the loss of a bound and weighted batch.
        corrected: whether the batch carries importance weights.
        splits: whether the micro-batches' losses add up to that of the step.
        permutes: whether the order of samples does not matter.
    """

    name: str
    schema: type[RolloutBatch]
    run: Callable[[Any], Loss]
    corrected: bool = False
    splits: bool = True
    permutes: bool = True


def _objectives() -> Iterator[LossSubject]:
    for name, kind in KINDS.items():
        configs = [{}, *[config for config, _ in REFERENCES.get(name, [])]]
        yield from (_objective(f"{name}-{number}", kind(**config)) for number, config in enumerate(configs))
        if kind().correction != "refuses":
            yield _objective(f"{name}-corrected", kind(), corrected=True)


def _objective(name: str, objective: Objective, *, corrected: bool = False) -> LossSubject:
    def run(batch: Any) -> Loss:
        return policy_loss(batch, objective)

    # Which token a random draw hits depends on its place.
    limits = {"splits": not objective.batch_statistics, "permutes": objective.name != "clip_cov"}
    return LossSubject(name, objective.reads, run, corrected, **limits)


def _kl_estimators() -> Iterator[kl.KLEstimator]:
    plain = [kl.K1(), kl.K2(), kl.K3(), kl.LowVarKL(), kl.AbsoluteKL(), kl.K3(input_bound=1.0, output_bound=0.5)]
    yield from plain
    yield from (kl.StraightThroughKL(estimator=estimator) for estimator in plain[:4])
    yield from (kl.ScoreFunctionKL(), kl.BehaviourKL(estimator=kl.LowVarKL()))
    yield from (kl.UnbiasedKL(), kl.UnbiasedKL(level="sequence", estimator=kl.LowVarKL(), cut_where_clamped=False))
    yield kl.UnbiasedKL(estimator=kl.K2(output_bound=0.5), weight_before_clamp=False)


def _kl() -> Iterator[LossSubject]:
    for number, estimator in enumerate(_kl_estimators()):

        def run(batch: Any, estimator: kl.KLEstimator = estimator) -> Loss:
            with warnings.catch_warnings():  # k1 as a loss
                warnings.simplefilter("ignore", UserWarning)
                return kl_loss(batch, estimator)

        yield LossSubject(f"kl-{estimator.name}-{number}", estimator.reads, run)


OUTSIDE: tuple[Any, ...] = ("tail", "renormalise", "ignore")
ERRORS = [CriticError(), CriticError(clip=0.2, half=False), CriticError(clip=0.2, huber_delta=0.7)]
TERMS = [
    FullVocabulary(),
    *(TopKDivergence(beta=beta, outside=outside) for beta in (0.0, 0.5, 1.0) for outside in OUTSIDE),
    TopKDivergence(beta=0.5, interpolation="linear"),
    FlooredTopKDivergence(beta=0.5),
    *(TopKReverseKL(weights=weights) for weights in ("student", "teacher", "uniform")),
    TopKReverseKL(renormalise=False),
]


def _others() -> Iterator[LossSubject]:
    yield LossSubject("entropy_bonus", EntropyBatch, entropy_bonus)
    for number, error in enumerate(ERRORS):
        yield LossSubject(f"value-{number}", ValueBatch, partial(value_loss, error=error))
    for number, term in enumerate(TERMS):
        yield LossSubject(f"{term.name}-{number}", term.reads, partial(distillation_loss, term=term))


LOSSES: list[LossSubject] = [*_objectives(), *_kl(), *_others()]


# -- calculations of fixed tensors -------------------------------------------------------------------------------------

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Calculation:
    """An estimator, a correction, or a set of metrics.

    Attributes:
        name: the test's id.
        schema: what it reads.
        run: named results; metrics as the partial sums of each.
        permutes: whether the order of samples does not matter.
    """

    name: str
    schema: type[RolloutBatch]
    run: Callable[[Any], Results]
    permutes: bool = True


def metric_results(metrics: Metrics) -> Results:
    return {f"metric {name} ({metric.kind})": metric.parts for name, metric in metrics.items()}


def correction_results(correction: Correction) -> Results:
    found = {"weights": correction.weights, "mask": correction.mask}
    return {name: value for name, value in found.items() if value is not None} | metric_results(correction.metrics)


def tensor_results(result: Any) -> Results:
    if isinstance(result, Tensor):
        return {"result": result}
    return {name: value for name, value in result._asdict().items() if isinstance(value, Tensor)}


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "gae": [{}, {"gamma": 0.9, "lam": LengthAdaptive(alpha=0.5), "value_lam": 1.0}, {"gamma": 0.9, "masked": "step"}],
    "grpo": [{}, {"scale": "batch", "leave_one_out": True}, {"scale": "none", "singleton": "raw"}],
    "discounted_returns": [{"gamma": 0.9, "masked": masked} for masked in ("skip", "step", "reset")],
    "optimal_token_baseline": [{}, {"positions": "trained", "zero_tail": True}],
    "pass_at_k": [{}, {"normalize": False}],
    "gdpo": [{}, {"weights": [1.0, 0.3], "leave_one_out": True}],
}
NOT_HERE = {"role_conditioned"}  # needs roles and a state; its order matters


def _estimators() -> Iterator[Calculation]:
    for name, entry in ESTIMATORS.items():
        if name in NOT_HERE:
            continue
        for number, options in enumerate(OPTIONS.get(name, [{}])):

            def run(batch: Any, function: Any = entry.function, options: dict[str, Any] = options) -> Results:
                return tensor_results(function(batch, **options))

            yield Calculation(f"{name}-{number}", entry.reads, run)


RULES: list[Any] = [
    Truncate(),
    Truncate(level="sequence", low=0.5, high=1.5),
    Truncate(level="geometric"),
    Truncate(high=1.5, only=Reject(statistic="k3", high=0.05)),
    IcePop(),
    Normalize(rule=Truncate(high=1.5)),
    Normalize(rule=Truncate(high=1.5, level="sequence"), per="sequence"),
    Reject(high=1.4),
    Reject(statistic="k1", level="sequence-mean", low=-0.1, high=0.1),
    Reject(statistic="k2", level="sequence-max", high=0.1),
    Reject(statistic="k3", level="sequence-sum", high=0.1),
    Reject(level="sequence-every", low=0.5),
    corrections.M2PO(),
    Truncate(high=1.5) & Reject(low=0.5),
]


def _corrections() -> Iterator[Calculation]:
    for number, rule in enumerate(RULES):

        def run(batch: Any, rule: Any = rule) -> Results:
            return correction_results(rule(batch))

        yield Calculation(f"{type(rule).__name__}-{number}", TISBatch, run)


CALCULATIONS: list[Calculation] = [
    *_estimators(),
    *_corrections(),
    Calculation("place_rewards", RewardBatch, lambda batch: tensor_results(place_rewards(batch))),
    Calculation("reward_metrics", RewardBatch, lambda batch: metric_results(reward_metrics(batch))),
    Calculation("whiten", PolicyBatch, lambda batch: tensor_results(whiten(batch, batch.advantages))),
    Calculation("positive", RewardBatch, lambda batch: tensor_results(positive_example_weights(batch))),
    Calculation("kl_penalty", ScoredKLBatch, lambda batch: tensor_results(kl_penalty(batch))),
    Calculation("kl_penalty_metrics", ScoredKLBatch, lambda batch: metric_results(kl_penalty_metrics(batch))),
    Calculation("penalised_rewards", KLRewardBatch, lambda batch: tensor_results(penalised_rewards(batch, 0.1))),
    Calculation("reverse_kl", OPDBatch, lambda batch: tensor_results(reverse_kl(batch))),
    Calculation("reverse_kl_metrics", OPDBatch, lambda batch: metric_results(reverse_kl_metrics(batch))),
    Calculation("mixed_teacher", TeachersBatch, lambda batch: tensor_results(mixed_teacher(batch))),
    Calculation("mismatch_metrics", TISBatch, lambda batch: metric_results(mismatch_metrics(batch))),
]

LATE: list[Calculation] = [
    Calculation("entropy_metrics", ObservedEntropyBatch, lambda batch: metric_results(entropy_metrics(batch))),
]
