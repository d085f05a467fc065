"""What a trainer's options amount to: every term of the loss, its coefficient and its denominators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny
from torch import Tensor

from rollout_contract import metrics
from rollout_contract.advantages import ESTIMATORS, AdvantagesAndReturns, Whitening, whiten
from rollout_contract.advantages.estimator import fixed
from rollout_contract.aggregation import Aggregation, step_weights
from rollout_contract.corrections import Combined, Correction, CorrectionRule, Normalize
from rollout_contract.corrections.rule import AnyRule
from rollout_contract.distillation.advantages import opd_advantages
from rollout_contract.kl import KLEstimator, SampledKL
from rollout_contract.kl_reward import AdaptiveKLCoefficient
from rollout_contract.losses.inputs import read, require
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.policy import policy_loss
from rollout_contract.losses.value import CriticError
from rollout_contract.metrics import Metrics
from rollout_contract.objectives import Objective, PositiveNLL, Terms, positive_example_weights
from rollout_contract.roles import Fixed, unbound
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import EntropyBatch, LiveBatch, PositiveBatch, RewardBatch, TISBatch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

StepT = TypeVar("StepT", bound=RolloutBatch)


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class KLInLoss(_Part):
    """A KL term that is added to the policy loss.

    Attributes:
        coefficient: what it is multiplied with.
        estimator: the term.
        aggregation: its denominators; several trainers give it others than the policy loss.
    """

    coefficient: float
    estimator: SerializeAsAny[KLEstimator]
    aggregation: Aggregation


class KLInReward(_Part):
    """A KL penalty that is taken off the token rewards; see ``rollout_contract.kl_reward``.

    Attributes:
        coefficient: at the start; ``coefficient.updated(...)`` after each step if it adapts, else a number.
        estimator: its value.
    """

    coefficient: float | AdaptiveKLCoefficient
    estimator: SerializeAsAny[SampledKL]


class Entropy(_Part):
    """An entropy bonus: ``coefficient`` times the entropy is taken off the loss."""

    coefficient: float
    aggregation: Aggregation


class Critic(_Part):
    """``value_loss(batch.weighted(critic.aggregation), critic.error)``, of the critic's own batch."""

    error: CriticError
    aggregation: Aggregation


class AdvantageRule(_Part):
    """An estimator of ``rollout_contract.advantages`` with its options, and what is done to its result.

    Attributes:
        estimator: name of the estimator.
        options: its keyword arguments.
        scale: multiplies the advantages.
        distillation: coefficient of the reverse KL to a teacher, which is taken off the advantages.
        whitening: applied last; None leaves the advantages as they are.
    """

    estimator: str
    options: Mapping[str, Any] = Field(default_factory=dict)
    scale: float = 1.0
    distillation: float | None = None
    whitening: Whitening | None = None

    @property
    def reads(self) -> type[RolloutBatch]:
        """The schema that the estimator reads; with ``distillation``, an ``OPDBatch`` as well."""
        return ESTIMATORS[self.estimator].reads

    def __call__(self, batch: RolloutBatch) -> AdvantagesAndReturns:
        """Advantages of a whole step, and returns: those of the critic, or the estimator's own advantages.

        ``role_conditioned`` carries a state from step to step: call it yourself, with these options.
        """
        found = ESTIMATORS[self.estimator].function(batch, **self.options)
        advantages, returns = found if isinstance(found, AdvantagesAndReturns) else (found, found)
        advantages = fixed(advantages * self.scale)
        if self.distillation is not None:
            advantages = opd_advantages(batch, advantages, self.distillation)  # type: ignore[arg-type]
        if self.whitening is not None:
            advantages = whiten(batch, advantages, self.whitening)
        return AdvantagesAndReturns(advantages, returns)


class TermWeights(RolloutBatch):
    """Weights of terms whose denominators are not those of the policy loss; ``Recipe.prepare`` sets them."""

    kl_weights: Fixed[Float[Tensor, "tokens"]] = unbound()
    entropy_weights: Fixed[Float[Tensor, "tokens"]] = unbound()
    positive_weights: Fixed[Float[Tensor, "tokens"]] = unbound()


class Recipe(_Part):
    """The loss of a trainer with one set of options, as terms of this library.

    Attributes:
        trainer: whose options it was made of.
        objective: the policy objective.
        aggregation: how its token losses become one number.
        correction: of the mismatch between sampler and trainer; applied to the whole step.
        keep_denominators: a token that the correction rejects still counts in the denominators.
        bypass: the policy that the ratio is taken against is the sampler: give its log-probs as ``old_log_probs``.
        kl_loss, entropy: further terms of the loss, if there are any.
        positive_nll: coefficient of the likelihood of responses with a positive reward (VAPO); 0 for none.
        kl_reward, advantages, critic: what happens outside the policy's loss, where the options say so.
        notes: what else the options ask for.
    """

    trainer: str
    objective: SerializeAsAny[Objective]
    aggregation: Aggregation
    correction: CorrectionRule | None = None
    keep_denominators: bool = False
    bypass: bool = False
    kl_loss: KLInLoss | None = None
    entropy: Entropy | None = None
    positive_nll: float = 0.0
    kl_reward: KLInReward | None = None
    advantages: AdvantageRule | None = None
    critic: Critic | None = None
    notes: tuple[str, ...] = ()

    @property
    def schemas(self) -> tuple[type[RolloutBatch], ...]:
        """The schemas that ``prepare`` and ``loss`` read; inherit from them to declare a step of your own."""
        found: list[type[RolloutBatch]] = [self.objective.reads]
        found += [] if self.correction is None else [TISBatch]
        found += [] if self.kl_loss is None else [self.kl_loss.estimator.reads]
        found += [] if self.entropy is None else [EntropyBatch]
        found += [RewardBatch, LiveBatch] if self.positive_nll else []
        found += [TermWeights] if self._own_weights() or self.positive_nll else []
        return tuple(dict.fromkeys(found))

    @property
    def reads(self) -> type[Any]:
        """One schema with the fields of all of them. A batch of it cannot be pickled: declare a class for that."""
        return combined(self.schemas)

    def prepare(
        self,
        step: StepT,
        *,
        group: ProcessGroup | None = None,
        denominator: Tensor | float | None = None,
        scale: float = 1.0,
    ) -> StepT:
        """The whole step, corrected and weighted; to be split, bound, and given to ``loss``.

        Args:
            step: before any split.
            group: data-parallel ranks that hold the other parts of the step.
            denominator: of the policy loss, where the trainer has counted it; see ``RolloutBatch.weighted``.
            scale: multiplies every weight; see ``RolloutBatch.weighted``.
        """
        require(step, self.reads, f"{self.trainer} recipe")
        rule, counted = self.correction, step.loss_mask
        if rule is not None and not self.keep_denominators:
            step = step.corrected(corrected(step, rule, group))
            counted = step.loss_mask
        step = step.weighted(self.aggregation, group=group, denominator=denominator, scale=scale)
        if rule is not None and self.keep_denominators:
            step = step.corrected(corrected(step, rule, group), keep_denominators=True)
        extra = {
            name: step_weights(step.layout, counted, own, group) * step.loss_mask * scale
            for name, own in self._own_weights().items()
        }
        if self.positive_nll:
            extra["positive_weights"] = positive_example_weights(cast("RewardBatch", step), group=group)
        return step.extend(type(step), **extra) if extra else step

    def loss(self, batch: RolloutBatch) -> Loss:
        """The whole loss of the policy on a micro-batch that was prepared and bound."""
        require(batch, self.reads, f"{self.trainer} recipe")
        loss = policy_loss(batch, self.objective)
        if self.kl_loss is not None:
            loss = loss + self.kl_loss.coefficient * self._term(batch, "kl", self.kl_loss.estimator.terms(batch))
        if self.entropy is not None:
            entropy = read(batch, "entropy")
            observed = Metrics({"entropy": metrics.mean(entropy, batch.loss_mask)})
            loss = loss - self.entropy.coefficient * self._term(batch, "entropy", Terms(entropy, observed))
        if self.positive_nll:
            loss = loss + self.positive_nll * policy_loss(cast("PositiveBatch", batch), PositiveNLL())
        return loss

    def _own_weights(self) -> dict[str, Aggregation]:
        terms = {"kl_weights": self.kl_loss, "entropy_weights": self.entropy}
        return {n: t.aggregation for n, t in terms.items() if t is not None and t.aggregation != self.aggregation}

    def _term(self, batch: RolloutBatch, name: str, terms: Terms) -> Loss:
        """A term beside the policy loss, with its own weights if it has some; importance weights are not for it."""
        weights = f"{name}_weights" if f"{name}_weights" in self._own_weights() else "loss_weights"
        value = (read(batch, weights, like=terms.loss) * terms.loss).sum()
        own = metrics.Metric("sum", metrics.parts(value.detach()))
        return Loss(value, terms.metrics.merge({f"{name}_loss": own}))


def corrected(step: Any, rule: AnyRule, group: ProcessGroup | None) -> Correction:
    """The correction of a step; a normalisation takes its mean over all ranks."""
    if isinstance(rule, Combined):
        return reduce(and_, [corrected(step, part, group) for part in rule.rules])
    return rule(step, group=group) if isinstance(rule, Normalize) else rule(step)


@cache
def combined(schemas: tuple[type[RolloutBatch], ...]) -> type[Any]:
    """One schema that inherits from all of these."""
    most_derived = tuple(
        base for base in schemas if not any(base is not other and issubclass(other, base) for other in schemas)
    )
    return most_derived[0] if len(most_derived) == 1 else type("RecipeStep", most_derived, {})
