"""Generalised advantage estimation, over the tokens that the policy chose."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, PositiveFloat
from torch import Tensor

from rollout_contract.advantages.estimator import AdvantagesAndReturns, Fraction, estimator, fixed
from rollout_contract.advantages.groups import trained_counts
from rollout_contract.kernels.returns import discounted_sums, temporal_differences
from rollout_contract.losses.inputs import read
from rollout_contract.schemas import BootstrappedGAEBatch, GAEBatch


class LengthAdaptive(BaseModel):
    """VAPO's lambda for the policy: ``1 - 1 / (alpha n)`` with n the trained tokens of the sample, at least 0.

    Then the sum of the coefficients grows with the length of the response (arXiv:2504.05118; alpha 0.05 there).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    alpha: PositiveFloat = 0.05

    def of(self, lengths: Tensor) -> Tensor:
        """[batch] trained tokens -> [batch] lambda."""
        return 1.0 - 1.0 / (self.alpha * lengths).clamp(min=1.0)


Lambda: TypeAlias = Fraction | LengthAdaptive


@estimator(
    formula="A_t = d_t + gamma lambda A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t; returns = A + V",
    paper="arXiv:1506.02438",
    known_as={
        "verl": "algorithm.adv_estimator=gae",
        "OpenRLHF": "--advantage_estimator gae",
        "NeMo-RL": "grpo.adv_estimator.name=gae",
        "AReaL": "gae_lambda (always on)",
        "SkyRL": "trainer.algorithm.advantage_estimator=gae",
        "miles": "--advantage-estimator ppo",
        "slime": "--advantage-estimator ppo",
    },
)
def gae(
    batch: GAEBatch,
    *,
    gamma: Fraction = 1.0,
    lam: Lambda = 0.95,
    value_lam: Fraction | None = None,
    masked: Literal["skip", "step"] = "skip",
) -> AdvantagesAndReturns:
    """Advantages and returns (arXiv:1506.02438). Whitening is separate: ``whiten(batch, result.advantages)``.

    A masked token is no transition: the next value and the next advantage are those of the next trained token. (miles
    removes such tokens, verl and NeMo-RL carry the values across: the same numbers.) SkyRL and slime ignore the mask;
    to get their numbers, build the estimator's batch with a mask that covers tool tokens.

    Args:
        batch: token rewards and the critic's values. A response is over after its last token, except in a
            ``BootstrappedGAEBatch``, which says what follows.
        gamma: the discount per step.
        lam: weighs long against short sums: 1 gives Monte-Carlo returns, 0 one-step differences. ``LengthAdaptive``
            makes it depend on the response's length (VAPO, arXiv:2504.05118).
        value_lam: another lambda for the returns, that is for the critic (VAPO takes 1); by default ``lam``.
        masked: ``step`` makes a masked token a time step with reward 0 and value 0 (OpenRLHF).

    Returns:
        advantages and returns, [tokens], 0 at masked tokens.
    """
    mask, ids = batch.loss_mask, batch.layout.sample_ids(batch.device)
    values = read(batch, "values")
    rewards = read(batch, "token_rewards", like=values)
    after = (
        read(batch, "final_values", like=values)
        if isinstance(batch, BootstrappedGAEBatch)
        else values.new_zeros(len(batch))
    )
    differences = temporal_differences(rewards, values, mask, ids, gamma, batch.layout.expand(after), masked)

    def summed(lam: float | LengthAdaptive) -> Tensor:
        per_token = (
            batch.layout.expand(lam.of(trained_counts(batch, values))) if isinstance(lam, LengthAdaptive) else lam
        )
        return discounted_sums(differences, mask, ids, gamma * per_token, masked).where(mask, 0.0)

    advantages = summed(lam)
    critic = advantages if value_lam is None else summed(value_lam)
    return AdvantagesAndReturns(fixed(advantages), fixed(critic + values))
