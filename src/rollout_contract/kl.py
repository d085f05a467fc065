r"""How KL(policy || reference) is estimated from sampled tokens: frozen configurations for ``kl_loss``.

With x = log_probs - ref_log_probs (nats) on a token that the policy sampled (joschu.net/blog/kl-approx):

=====================  ============================  ==========================================================
estimator              value                         gradient / d log_probs (its expectation matters)
=====================  ============================  ==========================================================
K1                     x                             1: expectation zero, so as a loss it does nothing but noise
K2                     x^2 / 2                       x: the gradient of the reverse KL
K3, LowVarKL           exp(-x) - 1 + x               1 - exp(-x): the gradient of the *forward* KL
AbsoluteKL             |x|                           sign(x): of no KL
StraightThroughKL      any of them                   x, that of K2
ScoreFunctionKL        any of them                   the gradient of the reverse KL, on the sampling policy
UnbiasedKL             exp(l - l_old) x any          the same, while the policy moves away from the old one
BehaviourKL            exp(l - l_rollout) x any      the same, against the policy that the sampler ran
=====================  ============================  ==========================================================

In the reward the value alone counts: there K1 is the right choice (``rollout_contract.kl_reward``).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import PositiveFloat, SerializeAsAny
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.kernels import kl as kernels
from rollout_contract.kernels.ratio import bounded, sequence_mean_log_ratio
from rollout_contract.losses.inputs import read
from rollout_contract.losses.term import LossTerm, Terms
from rollout_contract.metrics import Metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import BehaviourKLBatch, KLBatch, ScoredKLBatch


class KLEstimator(LossTerm, ABC):
    """A KL term per token, in nats, live in ``log_probs``. Subclass it to add one of your own."""

    paper: ClassVar[str] = "http://joschu.net/blog/kl-approx.html"


class SampledKL(KLEstimator, ABC):
    """An estimate from the log-ratio alone.

    Attributes:
        input_bound: the log-ratio is clamped to +-this, in nats, before the estimate. 20 in miles' ``low_var_kl``, in
            k3 of verl and SkyRL, and for every estimator in NeMo-RL; TRL, Liger, slime and OpenRLHF have none.
        output_bound: the estimate is clamped to +-this. It is 10 in the same and in slime's ``low_var_kl``, and for
            every estimator in OpenRLHF and NeMo-RL.

    A token has no gradient where a clamp bites, so one that drifted far away is not pulled back. Both are off by
    default, except in :class:`LowVarKL`; what float32 cannot exponentiate is bounded in any case.
    """

    input_bound: PositiveFloat | None = None
    output_bound: PositiveFloat | None = None

    reads: ClassVar[type[RolloutBatch]] = KLBatch

    @abstractmethod
    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        """The estimate of each token, before the output clamp."""

    def value(self, log_ratio: Tensor, /) -> Tensor:
        """[tokens] of log-ratios -> [tokens] of estimates, with both clamps."""
        return kernels.clamped(self.estimate(kernels.clamped(log_ratio, self.input_bound)), self.output_bound)

    def bites(self, log_ratio: Tensor, /) -> Tensor:
        """[tokens] bool: where a clamp changes the value."""
        estimate = self.estimate(kernels.clamped(log_ratio, self.input_bound))
        return kernels.exceeds(log_ratio, self.input_bound) | kernels.exceeds(estimate, self.output_bound)

    def terms(self, batch: KLBatch, /) -> Terms:
        log_ratio = log_ratio_to_reference(batch)
        return kl_terms(self, log_ratio, self.value(log_ratio), batch.loss_mask)


class K1(SampledKL):
    """x. Right in the reward, useless as a loss: its gradient has expectation zero under the policy's own samples."""

    name = "k1"
    formula = "x = l - l_ref; KL = x"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--kl-loss-type k1",
        "slime": "--kl-loss-type k1",
        "verl": "kl_loss_type=kl | k1",
        "TRL": "RLOOTrainer, beta (in the reward)",
        "OpenRLHF": "--kl_estimator k1",
        "NeMo-RL": "reference_policy_kl_type=k1",
        "AReaL": "kl_estimator=k1 (in the reward)",
        "SkyRL": "kl_estimator_type=k1",
    }

    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        return kernels.k1(log_ratio)

    def terms(self, batch: KLBatch, /) -> Terms:
        message = (
            "k1 as a loss trains nothing: its gradient has expectation zero. Use K2() or UnbiasedKL(), or put k1 into "
            "the reward (rollout_contract.kl_reward)"
        )
        warnings.warn(message, UserWarning, stacklevel=4)
        return super().terms(batch)


class K2(SampledKL):
    """x^2 / 2. Its gradient x is the score-function gradient of the reverse KL: the plain choice for a loss."""

    name = "k2"
    formula = "x = l - l_ref; KL = x^2 / 2"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--kl-loss-type k2",
        "slime": "--kl-loss-type k2",
        "verl": "kl_loss_type=mse | k2",
        "OpenRLHF": "--kl_estimator k2",
        "NeMo-RL": "reference_policy_kl_type=k2",
        "AReaL": "kl_estimator=k2 (in the reward)",
        "SkyRL": "kl_estimator_type=k2",
    }

    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        return kernels.k2(log_ratio)


class K3(SampledKL):
    """exp(-x) - 1 + x: an unbiased value that is never negative. Its plain gradient is that of the forward KL."""

    name = "k3"
    formula = "x = l - l_ref; KL = exp(-x) - 1 + x"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--kl-loss-type k3",
        "slime": "--kl-loss-type k3",
        "verl": "kl_loss_type=k3 (input_bound=20, output_bound=10)",
        "TRL": "beta",
        "OpenRLHF": "--kl_estimator k3 (output_bound=10)",
        "NeMo-RL": "reference_policy_kl_type=k3 (input_bound=20, output_bound=10)",
        "AReaL": "kl_estimator=k3 (in the reward)",
        "SkyRL": "kl_estimator_type=k3 (input_bound=20, output_bound=10)",
        "Liger": "beta",
        "torchforge": "SimpleGRPOLoss, beta",
    }

    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        return kernels.k3(log_ratio)


class LowVarKL(K3):
    """k3 with its input clamped to +-20 nats and its output to +-10."""

    name = "low_var_kl"
    formula = "y = clamp(l - l_ref, +-20); KL = clamp(exp(-y) - 1 + y, +-10)"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--kl-loss-type low_var_kl",
        "slime": "--kl-loss-type low_var_kl (input_bound=None)",
        "verl": "kl_loss_type=low_var_kl",
    }

    input_bound: PositiveFloat | None = 20.0
    output_bound: PositiveFloat | None = 10.0


class AbsoluteKL(SampledKL):
    """|x|: a distance that cannot be gamed by negative values; the gradient has the same size everywhere."""

    name = "abs"
    formula = "x = l - l_ref; KL = |x|"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "kl_loss_type=abs", "SkyRL": "kl_estimator_type=abs"}

    def estimate(self, log_ratio: Tensor, /) -> Tensor:
        return kernels.absolute(log_ratio)


class StraightThroughKL(KLEstimator):
    """The value of any estimator with the gradient of k2, which is that of the reverse KL.

    Attributes:
        estimator: gives the value; its clamps do not touch the gradient.
    """

    name = "straight_through"
    formula = "b = (l - l_ref)^2 / 2; KL = b - sg(b) + sg(estimate)"
    known_as: ClassVar[Mapping[str, str]] = {"verl": "kl_loss_type=k1+ | k3+ | abs+ | low_var_kl+"}
    reads: ClassVar[type[RolloutBatch]] = KLBatch

    estimator: SerializeAsAny[SampledKL] = K3()

    def terms(self, batch: KLBatch, /) -> Terms:
        log_ratio = log_ratio_to_reference(batch)
        value = kernels.straight_through(self.estimator.value(log_ratio), kernels.k2(log_ratio))
        return kl_terms(self.estimator, log_ratio, value, batch.loss_mask)


class WeightedKL(KLEstimator, ABC):
    """A live weight times an estimate: the gradient then sees that the policy chooses which tokens are sampled.

    This is the one place where a *live* importance weight is right.

    Attributes:
        estimator: the estimate. With k3, and k1 too, the gradient is that of the reverse KL.
        weight_before_clamp: whether the output clamp applies to weight x estimate (miles, slime, NeMo-RL), so that no
            token costs more than ``output_bound``; otherwise to the estimate alone.
        cut_where_clamped: the weight is a constant where the input clamp bites (NeMo-RL; live in miles and slime). A
            token whose estimate is a mere bound would otherwise still be pushed away, with the bound as its reward.
        log_weight_bound: the weight's logarithm is clamped to +-this, in nats. None, as in every trainer: only what the
            dtype can exponentiate bounds it.
    """

    estimator: SerializeAsAny[SampledKL] = K3()
    weight_before_clamp: bool = True
    cut_where_clamped: bool = True
    log_weight_bound: PositiveFloat | None = 20.0

    def weighted_terms(self, batch: KLBatch, log_weight: Tensor) -> Terms:
        """The terms for the logarithm of a live weight [tokens]."""
        log_ratio = log_ratio_to_reference(batch)
        log_weight = bounded(log_weight, self.log_weight_bound)
        if self.cut_where_clamped:
            log_weight = kernels.constant_where(log_weight, kernels.exceeds(log_ratio, self.estimator.input_bound))
        if self.weight_before_clamp:
            estimate = self.estimator.estimate(kernels.clamped(log_ratio, self.estimator.input_bound))
            value = kernels.clamped(log_weight.exp() * estimate, self.estimator.output_bound)
        else:
            value = log_weight.exp() * self.estimator.value(log_ratio)
        return kl_terms(self.estimator, log_ratio, value, batch.loss_mask)


class ScoreFunctionKL(WeightedKL):
    """exp(l - sg l) x estimate: the value of the estimate, and the whole gradient of the reverse KL.

    On the policy that sampled the tokens it equals :class:`UnbiasedKL`, without old log-probs.
    """

    name = "score_function"
    formula = "KL = exp(l - sg l) k(l - l_ref)"
    known_as: ClassVar[Mapping[str, str]] = {"NeMo-RL": "reference_policy_kl_penalty (always on)"}
    reads: ClassVar[type[RolloutBatch]] = KLBatch

    def terms(self, batch: KLBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        return self.weighted_terms(batch, log_probs - log_probs.detach())


class UnbiasedKL(WeightedKL):
    """exp(l - l_old) x estimate, the weight live (DeepSeek-V3.2, arXiv:2512.02556; arXiv:2506.09477).

    Attributes:
        level: ``token``, or ``sequence``: the geometric mean of the sample's ratios, which TRL uses when the policy's
            own ratio is GSPO's.
    """

    name = "unbiased"
    formula = "KL = exp(l - l_old) k(l - l_ref), the weight live"
    paper = "arXiv:2512.02556"
    known_as: ClassVar[Mapping[str, str]] = {
        "miles": "--use-unbiased-kl",
        "slime": "--use-unbiased-kl",
        "TRL": "use_bias_correction_kl=true, beta",
        "Liger": "use_bias_correction_kl=true, beta",
    }
    reads: ClassVar[type[RolloutBatch]] = ScoredKLBatch

    level: Literal["token", "sequence"] = "token"

    def terms(self, batch: ScoredKLBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        log_weight = log_probs - read(batch, "old_log_probs", like=log_probs)
        if self.level == "sequence":
            sample_ids = batch.layout.sample_ids(log_weight.device)
            log_weight = sequence_mean_log_ratio(log_weight, batch.loss_mask, sample_ids, batch.layout.num_samples)
        return self.weighted_terms(batch, log_weight)


class BehaviourKL(WeightedKL):
    """exp(l - l_rollout) x estimate, the weight live: it corrects for the sampler's own mismatch as well."""

    name = "behaviour"
    formula = "KL = exp(l - l_rollout) k(l - l_ref), the weight live"
    known_as: ClassVar[Mapping[str, str]] = {"NeMo-RL": "use_on_policy_kl_approximation=true"}
    reads: ClassVar[type[RolloutBatch]] = BehaviourKLBatch

    def terms(self, batch: BehaviourKLBatch, /) -> Terms:
        log_probs = read(batch, "log_probs")
        return self.weighted_terms(batch, log_probs - read(batch, "rollout_log_probs", like=log_probs))


def log_ratio_to_reference(batch: KLBatch) -> Tensor:
    """[tokens] log_probs - ref_log_probs, live, in nats; 0 at masked-out tokens."""
    log_probs = read(batch, "log_probs")
    return log_probs - read(batch, "ref_log_probs", like=log_probs)


def kl_terms(estimator: SampledKL, log_ratio: Tensor, value: Tensor, mask: Tensor) -> Terms:
    """The terms with their metrics, over the trained tokens.

    ``kl``: mean of what is trained. ``kl_k1``: mean log-ratio before any clamp, an unbiased estimate. ``kl_clamped``:
    share of the tokens at which a clamp of the estimator bites; they have no gradient.
    """
    log_ratio = log_ratio.detach()
    found = {"kl": metrics.mean(value, mask), "kl_k1": metrics.mean(log_ratio, mask)}
    if estimator.input_bound is not None or estimator.output_bound is not None:
        found["kl_clamped"] = metrics.fraction(estimator.bites(log_ratio), mask)
    return Terms(value, Metrics(found))


_ALL: tuple[type[KLEstimator], ...] = (
    K1,
    K2,
    K3,
    LowVarKL,
    AbsoluteKL,
    StraightThroughKL,
    ScoreFunctionKL,
    UnbiasedKL,
    BehaviourKL,
)

KL_ESTIMATORS: Mapping[str, type[KLEstimator]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""Name -> estimator class, in the order of the documentation."""
