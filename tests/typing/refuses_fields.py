"""Fields that are missing, unknown, or of another kind. Each line marked E must be refused. Never executed."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from tests.typing.values import kl, mask, policy, reward, rollouts, tis, trainable
from torch import Tensor

from rollout_contract import (
    Fixed,
    KLBatch,
    Metadata,
    OPDBatch,
    PerSample,
    PolicyBatch,
    RewardBatch,
    RolloutBatch,
    Sampling,
    TISBatch,
    ValueBatch,
)
from rollout_contract.schemas import (
    AdvantageBatch,
    GAEBatch,
    KLRewardBatch,
    PositiveBatch,
    ReMaxBatch,
    ReverseKLBatch,
    RoleRewardBatch,
    ScoredKLBatch,
    TokenRewardBatch,
    TopKBatch,
)

n = [3, 2]


class Own(AdvantageBatch, KLBatch):
    """A composed schema with a field of its own."""

    judged: Fixed[Float[Tensor, "tokens"]]
    task: PerSample[str]
    versions: Metadata[Mapping[str, int]]


def missing(x: Tensor) -> None:
    RolloutBatch(response_lengths=n)  # E: loss_mask
    RolloutBatch(loss_mask=mask)  # E: response_lengths
    PolicyBatch(response_lengths=n, loss_mask=mask, old_log_probs=x)  # E: advantages
    PolicyBatch(response_lengths=n, loss_mask=mask, advantages=x)  # E: old_log_probs
    AdvantageBatch(response_lengths=n, loss_mask=mask)  # E: advantages
    TISBatch(response_lengths=n, loss_mask=mask, old_log_probs=x)  # E: rollout_log_probs
    TISBatch(response_lengths=n, loss_mask=mask, rollout_log_probs=x)  # E: old_log_probs
    KLBatch(response_lengths=n, loss_mask=mask)  # E: ref_log_probs
    ScoredKLBatch(response_lengths=n, loss_mask=mask, ref_log_probs=x)  # E: old_log_probs
    OPDBatch(response_lengths=n, loss_mask=mask, old_log_probs=x)  # E: teacher_log_probs
    OPDBatch(response_lengths=n, loss_mask=mask, teacher_log_probs=x)  # E: old_log_probs
    ReverseKLBatch(response_lengths=n, loss_mask=mask)  # E: reverse_kl
    TopKBatch(response_lengths=n, loss_mask=mask, topk_ids=x)  # E: teacher_topk_log_probs
    TopKBatch(response_lengths=n, loss_mask=mask, teacher_topk_log_probs=x)  # E: topk_ids
    ValueBatch(response_lengths=n, loss_mask=mask, values=x)  # E: returns
    ValueBatch(response_lengths=n, loss_mask=mask, returns=x)  # E: values
    RewardBatch(response_lengths=n, loss_mask=mask)  # E: rewards
    TokenRewardBatch(response_lengths=n, loss_mask=mask)  # E: token_rewards
    GAEBatch(response_lengths=n, loss_mask=mask, token_rewards=x)  # E: values
    ReMaxBatch(response_lengths=n, loss_mask=mask, token_rewards=x)  # E: reward_baselines
    KLRewardBatch(response_lengths=n, loss_mask=mask, old_log_probs=x, ref_log_probs=x)  # E: token_rewards
    PositiveBatch(response_lengths=n, loss_mask=mask)  # E: positive_weights
    RoleRewardBatch(response_lengths=n, loss_mask=mask, rewards=x)  # E: roles


def missing_in_a_composed_schema(x: Tensor) -> None:
    rows = {"sort": 1}
    Own(response_lengths=n, loss_mask=mask, advantages=x, ref_log_probs=x, judged=x, task=["a", "b"], versions=rows)
    Own(response_lengths=n, loss_mask=mask, advantages=x, ref_log_probs=x, task=["a", "b"], versions=rows)  # E
    Own(response_lengths=n, loss_mask=mask, advantages=x, judged=x, task=["a", "b"], versions=rows)  # E
    Own(response_lengths=n, loss_mask=mask, ref_log_probs=x, judged=x, task=["a", "b"], versions=rows)  # E
    Own(response_lengths=n, loss_mask=mask, advantages=x, ref_log_probs=x, judged=x, versions=rows)  # E
    Own(response_lengths=n, loss_mask=mask, advantages=x, ref_log_probs=x, judged=x, task=["a", "b"])  # E


def unknown(x: Tensor) -> None:
    KLBatch(response_lengths=n, loss_mask=mask, ref_logprobs=x)  # E: the name of another trainer
    KLBatch(response_lengths=n, loss_mask=mask, ref_log_probs=x, advantages=x)  # E: of another schema
    PolicyBatch(response_lengths=n, loss_mask=mask, old_log_probs=x, advantages=x, ref_log_probs=x)  # E: the same
    RewardBatch(response_lengths=n, loss_mask=mask, rewards=x, reward=x)  # E
    RolloutBatch(n, mask)  # E: fields have names


def other_kinds(x: Tensor) -> None:
    RolloutBatch(response_lengths=3, loss_mask=mask)  # E: one length for each sample
    RolloutBatch(response_lengths=["3", "2"], loss_mask=mask)  # E: not integers
    RolloutBatch(response_lengths=n, loss_mask=None)  # E: a mask is needed
    RolloutBatch(response_lengths=n, loss_mask="110")  # E
    AdvantageBatch(response_lengths=n, loss_mask=mask, advantages=1.0)  # E: one number
    AdvantageBatch(response_lengths=n, loss_mask=mask, advantages={"a": x})  # E
    AdvantageBatch(response_lengths=n, loss_mask=mask, advantages=reward)  # E: a batch
    AdvantageBatch(response_lengths=n, loss_mask=mask, advantages=x, group_ids="aabb")  # E: integers
    RolloutBatch(response_lengths=n, loss_mask=mask, sampling={"old_log_probs": 0.7})  # E: a Sampling
    RolloutBatch(response_lengths=n, loss_mask=mask, sampling=Sampling())  # E: by field name
    RoleRewardBatch(response_lengths=n, loss_mask=mask, rewards=x, roles=[1, 2])  # E: strings
    Sampling(temprature=0.7)  # E
    Sampling(log_probs="logits")  # E


def reading() -> None:
    print(policy.ref_log_probs)  # E: a field of another schema
    print(policy.rollout_log_probs)  # E
    print(kl.advantages)  # E
    print(kl.old_log_probs)  # E
    print(tis.advantages)  # E
    print(reward.token_rewards)  # E
    print(rollouts.log_probs)  # E: nothing is trained here
    print(policy.old_logprobs)  # E: the name of another trainer
    print(policy["advantages"])  # E: rows are taken by number


def life_cycle(x: Tensor) -> None:
    policy.bind(x)  # E: fields have names
    policy.bind(log_probs="auto")  # E: not a tensor
    policy.bind(log_probs=None)  # E: leave it out where there is nothing
    policy.bind(log_probs=0.5)  # E
    policy.bind(log_probs=kl)  # E: a batch
    policy.extend("Own", ref_log_probs=x)  # E: a schema, not its name
    policy.extend(Own)(x)  # E
    policy.extend(Tensor, ref_log_probs=x)  # E: not a schema
    policy.extend(kl)  # E: a batch
    policy.extend()  # E
    print(policy.extend(KLBatch, ref_log_probs=x).advantages)  # E: that schema has none
    print(policy.bind(log_probs=trainable).ref_log_probs)  # E
    policy.split()  # E: by what?
    policy.split(3)  # E
    policy.split(samples=1, max_tokens=2)  # E: one of both
    policy.split(max_tokens="2k")  # E
    policy.weighted("mean")  # E: no such mode
    policy.weighted("token_mean")  # E: the name of another trainer
    policy.weighted()  # E: no default, since trainers differ
    policy.weighted("token-mean", scale="2")  # E
    policy.select("first")  # E
    policy.to(3.0)  # E
    policy.merged(kl)  # E: under which schema?
    PolicyBatch.concat(3)  # E
    PolicyBatch.concat([policy, kl])  # E[mypy, pyright]: another schema
    print(policy.allclose(kl))  # E
