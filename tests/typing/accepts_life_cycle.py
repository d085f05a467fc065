"""A whole step, from rollouts to the backward pass, with the types that a checker must see. Never executed."""

from __future__ import annotations

from typing import assert_type

from tests.typing.values import Step, mask, scores
from torch import Tensor

from rollout_contract import (
    Aggregation,
    Fixed,
    FixedTensor,
    KLBatch,
    Layout,
    Loss,
    Metrics,
    PerSample,
    PolicyBatch,
    RewardBatch,
    Sampling,
    TISBatch,
    TrainableTensor,
    kl_loss,
    policy_loss,
    settings,
)
from rollout_contract.advantages import AdvantagesAndReturns, gae, grpo, place_rewards, whiten
from rollout_contract.corrections import Combined, Correction, IcePop, Normalize, Reject, Truncate
from rollout_contract.kl import K2
from rollout_contract.metrics import Metric
from rollout_contract.mismatch import mismatch_metrics
from rollout_contract.objectives import GSPO, PPOClip
from rollout_contract.schemas import EntropyBatch, GAEBatch


class Rollouts(TISBatch, KLBatch, RewardBatch):
    """What the sampler and the scorers give."""


class Trained(Rollouts, PolicyBatch, EntropyBatch):
    """The same, with advantages, and an entropy that is bound."""


def build(rows: list[list[float]]) -> Rollouts:
    """Every per-token field takes a packed tensor or ragged rows; a live tensor is cut by the build."""
    return Rollouts(
        response_lengths=[3, 2],
        loss_mask=[[1, 1, 0], [1, 1]],
        group_ids=[0, 0],
        prompt_lengths=(4, 4),
        rewards=[1.0, 0.0],
        rollout_log_probs=rows,
        old_log_probs=[scores, scores],
        ref_log_probs=scores,
        sampling={"old_log_probs": Sampling(temperature=0.7)},
    )


def prepare(step: Rollouts) -> Trained:
    with settings(live_inputs="refuse"):
        wide = assert_type(step.extend(Trained, advantages=grpo(step, scale="none")), Trained)
    found = assert_type(Truncate(high=2.0)(wide), Correction)
    both = assert_type(IcePop() & Reject(), Combined)
    assert_type(both(wide) & found, Correction)
    assert_type(found.weights, Tensor | None)
    assert_type(mismatch_metrics(wide), Metrics)
    assert_type(wide.corrected(found), Trained)
    assert_type(wide.corrected(IcePop() & Reject(), keep_denominators=True), Trained)
    assert_type(wide.corrected(Normalize(rule=Truncate())(wide)), Trained)
    return assert_type(wide.weighted(Aggregation(mode="constant", constant=1024.0)), Trained)


def train(step: Trained, log_probs: Tensor, entropy: Tensor) -> None:
    parts = assert_type(step.split(max_tokens=1024), list[Trained])
    for micro in parts:
        bound = assert_type(micro.bind(log_probs=log_probs, entropy=entropy), Trained)
        loss = assert_type(policy_loss(bound, PPOClip(clip_high=0.28)), Loss)
        loss = assert_type(loss + 0.01 * kl_loss(bound, K2()) - 2 * policy_loss(bound, GSPO()), Loss)
        loss.backward()
        assert_type(loss.value, Tensor)
        assert_type(loss.metrics["kl"], Metric)
        assert_type(loss.metrics.compute(), dict[str, float])


def read(step: Trained) -> None:
    """What an attribute is: its role shows in its type; arithmetic on it gives a plain tensor again."""
    assert_type(step.old_log_probs, FixedTensor)
    assert_type(step.advantages, FixedTensor)
    assert_type(step.log_probs, TrainableTensor)
    assert_type(step.response_lengths, tuple[int, ...])
    assert_type(step.layout, Layout)
    assert_type(step.has("entropy"), bool)
    assert_type(len(step), int)
    ratio = assert_type((step.log_probs - step.old_log_probs).exp(), Tensor)
    assert_type(ratio * step.advantages, Tensor)
    assert_type(step[0], Trained)
    assert_type(step[1:], Trained)
    assert_type([part for part in step], list[Trained])  # noqa: C416
    assert_type(step.to("cpu").select([0]), Trained)
    assert_type(step.select(step.loss_mask), Trained)
    assert_type(Layout([3, 2]) == Layout(scores), bool)
    assert_type(Trained.concat([step, step]), Trained)


def estimate(rewards: RewardBatch, steps: GAEBatch) -> None:
    assert_type(grpo(rewards), FixedTensor)
    assert_type(place_rewards(rewards), FixedTensor)
    assert_type(gae(steps, gamma=1.0, lam=0.95), AdvantagesAndReturns)
    assert_type(whiten(steps, gae(steps).advantages), FixedTensor)


class Tagged(Step):
    """A field of one's own, and host values."""

    weights: Fixed[Tensor]
    names: PerSample[str]


def own_fields(step: Tagged) -> None:
    assert_type(step.weights, FixedTensor)
    assert_type(step.names, tuple[str, ...])
    Tagged(
        response_lengths=[3, 2],
        loss_mask=mask,
        old_log_probs=scores,
        advantages=scores,
        weights=scores,
        names=["a", "b"],
    )
