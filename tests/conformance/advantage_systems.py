"""How each system's advantage estimator is spelled in this library, driven by a record's own parameters.

Every column of a padded row is taken as a response token, so that the results are [batch, width] again. The library
gives 0 at masked tokens; several systems leave something else there, which is never trained on but stands in their
records. Those entries are computed by the kernels under the public functions, and checked to agree with the public
result wherever a token is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollout_contract import advantages as estimators
from rollout_contract.advantages import LengthAdaptive, Whitening, whiten
from rollout_contract.advantages.groups import grouped
from rollout_contract.corrections.correction import Correction
from rollout_contract.kernels import kl as kl_kernels
from rollout_contract.kernels.groups import above_mean, above_others
from rollout_contract.kernels.moments import inverse_std, moments
from rollout_contract.kernels.returns import Masked, discounted_sums, temporal_differences
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import (
    GAEBatch,
    OTBBatch,
    ReMaxBatch,
    RewardBatch,
    RewardComponentsBatch,
    TokenRewardBatch,
)
from tests.conformance.harness import Vector

EPSILON_IN = {"rsqrt(var+eps)": "variance", "rsqrt(max(var,eps))": "floor", "1/(sqrt(var)+eps)": "std"}
SINGLETON = {"raw": "raw", "raw_over_1_plus_eps": "raw", "zero": "zero"}


class GAE(NamedTuple):
    """[batch, width] with what the recursion leaves at masked tokens."""

    advantages: Tensor
    returns: Tensor


# -- batches and shapes ------------------------------------------------------------------------------------------------


def batch_of(schema: type[Any], mask: Tensor, **fields: Any) -> Any:
    """A batch of full-width rows; [batch, width] fields are packed."""
    rows, width = mask.shape
    flat = {n: f.flatten() if isinstance(f, Tensor) and f.shape == mask.shape else f for n, f in fields.items()}
    return schema(response_lengths=[width] * rows, loss_mask=mask.flatten(), **flat)


def padded(result: Tensor, mask: Tensor) -> Tensor:
    return result.unflatten(0, tuple(mask.shape))


def merged(public: Tensor, everywhere: Tensor, mask: Tensor) -> Tensor:
    """``everywhere``, after a check that it is the public result on trained tokens."""
    torch.testing.assert_close(everywhere[mask], public[mask], rtol=1e-12, atol=1e-12)
    assert bool((public[~mask] == 0).all())
    return everywhere


def mask_of(vector: Vector, role: str = "mask") -> Tensor:
    return vector.tensor(role).bool()


def everything(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def rewards_of(vector: Vector) -> Tensor:
    """[batch]: given, or the sum of the token rewards."""
    return vector.tensor("rewards") if vector.has("rewards") else vector.tensor("token_rewards").sum(1)


def groups_of(vector: Vector) -> list[int]:
    return [int(group) for group in vector.tensor("index")]


def reward_batch(vector: Vector, mask: Tensor) -> RewardBatch:
    groups = groups_of(vector) if vector.has("index") else None
    return batch_of(RewardBatch, mask, rewards=rewards_of(vector), group_ids=groups)


# -- whitening, returns and GAE with what systems leave at masked tokens ----------------------------------------------


def whitened(values: Tensor, mask: Tensor, spec: dict[str, Any] | None) -> Tensor:
    """Whitened over ``mask``; a masked position gets its own affine image, unless the record says that it is zeroed."""
    if not spec:
        return values
    config = Whitening(bessel=spec["bessel"], eps=spec["eps"], epsilon_in=EPSILON_IN[spec["form"]])
    public = padded(whiten(batch_of(RolloutBatch, mask), values.flatten(), config), mask)
    if spec["zero_masked"]:
        return public
    found = moments(values.flatten(), mask.flatten(), config.bessel)
    image = found.center(values) * inverse_std(found.variance, config.eps, config.epsilon_in)
    return merged(public, image, mask)


def returns(token_rewards: Tensor, mask: Tensor, gamma: float, masked: Masked) -> Tensor:
    batch = batch_of(TokenRewardBatch, mask, token_rewards=token_rewards)
    public = estimators.discounted_returns(batch, gamma=gamma, masked=masked)
    kept = token_rewards.where(mask, 0.0).flatten()
    left = discounted_sums(kept, mask.flatten(), batch.layout.sample_ids(), gamma, masked)
    return merged(padded(public, mask), padded(left, mask), mask)


def gae(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    lam: float | LengthAdaptive,
    value_lam: float | None = None,
    masked: Any = "skip",
) -> GAE:
    batch = batch_of(GAEBatch, mask, token_rewards=token_rewards, values=values)
    public = estimators.gae(batch, gamma=gamma, lam=lam, value_lam=value_lam, masked=masked)
    advantages, back = padded(public.advantages, mask), padded(public.returns, mask)
    if isinstance(lam, LengthAdaptive):
        return GAE(advantages, merged(back, critic(batch, mask, gamma, value_lam, masked) + values, mask))
    left = critic(batch, mask, gamma, lam, masked)
    own = left if value_lam is None else critic(batch, mask, gamma, value_lam, masked)
    kept = values.where(mask, 0.0) if masked == "step" else values
    return GAE(merged(advantages, left, mask), merged(back, own + kept, mask))


def critic(batch: GAEBatch, mask: Tensor, gamma: float, lam: float | None, masked: Masked) -> Tensor:
    ids = batch.layout.sample_ids()
    zeros = torch.zeros_like(batch.values)
    found = temporal_differences(batch.token_rewards, batch.values, batch.loss_mask, ids, gamma, zeros, masked)
    assert lam is not None
    return padded(discounted_sums(found, batch.loss_mask, ids, gamma * lam, masked), mask)


def placed(vector: Vector, mask: Tensor) -> Tensor:
    """[batch, width]: the reward on the last token of ``mask``."""
    return padded(estimators.place_rewards(batch_of(RewardBatch, mask, rewards=vector.tensor("rewards"))), mask)


def old_kl(vector: Vector) -> Tensor:
    log_ratio = vector.tensor("old") - vector.tensor("reference")
    return padded(getattr(kl_kernels, vector.params["kl"])(log_ratio.flatten()), log_ratio)


# -- one function for each estimator ----------------------------------------------------------------------------------


def whiten_only(vector: Vector) -> Tensor:
    mask, values = mask_of(vector), vector.tensor("advantages")
    return whitened(values.where(mask, 0.0) if vector.params["zero_before"] else values, mask, vector.params["whiten"])


def row_normalize(vector: Vector) -> Tensor:
    mask, params = mask_of(vector), vector.params
    config = Whitening(over="sample", bessel=params["bessel"], eps=params["eps"], epsilon_in="floor")
    return padded(whiten(batch_of(RolloutBatch, mask), vector.tensor("advantages").flatten(), config), mask)


def reward_everywhere(vector: Vector) -> Tensor:
    """The reward on every response position; whitened over the trained ones."""
    over = mask_of(vector, "length_mask") if vector.has("length_mask") else everything(mask_of(vector))
    values = padded(estimators.raw_reward(batch_of(RewardBatch, over, rewards=vector.tensor("rewards"))), over)
    return whitened(values, mask_of(vector), vector.params.get("whiten"))


def miles_ppo(vector: Vector) -> Tensor:
    mask, params = mask_of(vector), vector.params
    rewards = placed(vector, mask) - params["kl_coef"] * vector.tensor("kl")
    batch = batch_of(GAEBatch, mask, token_rewards=rewards, values=vector.tensor("values"))
    found = estimators.gae(batch, gamma=params["gamma"], lam=params["lam"])
    return whitened(padded(getattr(found, params["output"]), mask), mask, params.get("whiten"))


def slime_ppo(vector: Vector) -> Tensor:
    length_mask, params = mask_of(vector, "length_mask"), vector.params
    rewards = placed(vector, length_mask) - params["kl_coef"] * vector.tensor("kl")
    found = gae(rewards, vector.tensor("values"), length_mask, params["gamma"], params["lam"])
    return getattr(found, params["output"])


def reinforce_plus_plus(kl_at_masked: bool) -> Callable[[Vector], Tensor]:
    """Every response position is a time step; the KL penalty stands at tool tokens too, or not."""

    def estimate(vector: Vector) -> Tensor:
        mask, params = mask_of(vector), vector.params
        kl = vector.tensor("kl") if kl_at_masked else vector.tensor("kl").where(mask, 0.0)
        rewards = placed(vector, mask) - params["kl_coef"] * kl
        found = returns(rewards, mask_of(vector, "length_mask"), params["gamma"], "skip")
        return whitened(found, mask, params.get("whiten"))

    return estimate


def reward_minus_kl(vector: Vector) -> Tensor:
    found = reward_everywhere(type(vector)(vector.system, vector.entry | {"params": {}}))
    return whitened(
        found - vector.params["kl_coef"] * vector.tensor("kl"), mask_of(vector), vector.params.get("whiten")
    )


def plain_gae(masked_out: str) -> Callable[[Vector], Tensor]:
    """``ignored``: the mask is not seen by the recursion; ``skip`` and ``step`` as in the library."""

    def estimate(vector: Vector) -> Tensor:
        params, values = vector.params, vector.tensor("values")
        seen = everything(values) if masked_out == "ignored" else mask_of(vector)
        masked = "skip" if masked_out == "ignored" else masked_out
        found = gae(vector.tensor("token_rewards"), values, seen, params["gamma"], params["lam"], masked=masked)
        result = getattr(found, params["output"])
        spec = params.get("whiten") if params["output"] == "advantages" else None
        return whitened(result, mask_of(vector), spec) if spec else result

    return estimate


def nemo_gae(vector: Vector) -> Tensor:
    params, mask = vector.params, mask_of(vector)
    rewards = placed(vector, mask) - params["kl_coef"] * old_kl(vector)
    policy: float | LengthAdaptive = params["lam"] if params["lam_policy"] is None else params["lam_policy"]
    if params["length_alpha"] > 0:
        policy = LengthAdaptive(alpha=params["length_alpha"])
    value = params["lam"] if params["lam_value"] is None else params["lam_value"]
    found = gae(rewards, vector.tensor("values"), mask, params["gamma"], policy, value)
    if params["output"] == "returns":
        return found.returns
    return whitened(found.advantages, mask, params["whiten"]).where(mask, 0.0)


def nemo_rpp(vector: Vector) -> Tensor:
    params, mask = vector.params, mask_of(vector)
    estimate = estimators.dr_grpo if params["minus_baseline"] else estimators.raw_reward
    per_token = padded(estimate(reward_batch(vector, everything(mask))), mask)
    return whitened(per_token - params["kl_coef"] * old_kl(vector), mask, params["whiten"])


def nemo_baseline(vector: Vector) -> Tensor:
    """[batch]: the baseline, or the standard deviation, of each sample's group."""
    found = grouped(reward_batch(vector, mask_of(vector)))
    if vector.params["output"] == "std":
        assert not vector.params["loo"]
        return found.group.variance.sqrt()
    distance = (above_others if vector.params["loo"] else above_mean)(found.rewards, found.group)
    return found.rewards - distance


def nemo_grpo(vector: Vector) -> Tensor:
    params, over = vector.params, everything(mask_of(vector))
    scale = "group" if params.get("normalize", True) else "none"
    eps = params.get("eps", 0.0)
    found = estimators.grpo(reward_batch(vector, over), scale=scale, leave_one_out=params["loo"], eps=eps)
    return padded(found, over)


def gdpo(vector: Vector) -> Tensor:
    over = everything(mask_of(vector))
    components = torch.stack([vector.tensor("rewards"), vector.tensor("rewards_b")], 1)
    batch = batch_of(RewardComponentsBatch, over, reward_components=components, group_ids=groups_of(vector))
    params = vector.params
    found = estimators.gdpo(batch, weights=params["weights"], leave_one_out=params["loo"], eps=params["eps"])
    return padded(found, over)


def cumulative_returns(vector: Vector) -> Tensor:
    return returns(vector.tensor("token_rewards"), mask_of(vector), vector.params["gamma"], "step")


def openrlhf(shape: Callable[[RewardBatch], Tensor], critic: bool = False) -> Callable[[Vector], Tensor]:
    """Rewards shaped per sample, placed, minus KL; then discounted, or GAE; then whitened."""

    def estimate(vector: Vector) -> Tensor:
        params, rows = vector.params, vector.params["rows"]
        mask = mask_of(vector)[:rows]
        groups = [row // params["group_size"] for row in range(rows)]
        alone = RewardBatch(
            response_lengths=[1] * rows,
            loss_mask=[1] * rows,
            rewards=vector.tensor("rewards")[:rows],
            group_ids=groups,
        )
        rewards = padded(estimators.place_rewards(batch_of(RewardBatch, mask, rewards=shape(alone))), mask)
        rewards = rewards - params["kl_coef"] * vector.tensor("kl")[:rows]
        if critic:
            values = vector.tensor("values")[:rows]
            found = gae(rewards, values, mask, params["gamma"], params["lam"], masked="step").advantages
        else:
            found = returns(rewards, mask, params["gamma"], "step")
        spec = {"bessel": False, "eps": 1e-8, "form": "rsqrt(max(var,eps))", "zero_masked": False}
        return whitened(found, mask, spec if params["whiten"] else None)

    return estimate


def reset_returns(vector: Vector) -> Tensor:
    params, mask = vector.params, mask_of(vector)
    found = returns(vector.tensor("token_rewards"), mask, params["gamma"], "reset")
    return whitened(found, mask, params["whiten"]) if params["output"] == "advantages" else found


def on_trained(estimate: Callable[[RewardBatch, dict[str, Any]], Tensor]) -> Callable[[Vector], Tensor]:
    """An estimator of one number per sample, 0 at masked tokens."""

    def estimator(vector: Vector) -> Tensor:
        mask = mask_of(vector)
        found = padded(estimate(reward_batch(vector, mask), vector.params), mask)
        return whitened(found, mask, vector.params.get("whiten"))

    return estimator


def group_norm(batch: RewardBatch, params: dict[str, Any]) -> Tensor:
    return estimators.grpo(
        batch,
        scale="group" if params["std"] else "none",
        eps=params.get("eps", 0.0),
        bessel=params.get("bessel", True),
        variance_floor=params.get("var_floor", 0.0),
        singleton=SINGLETON[params["singleton"]],
    )


def remax(vector: Vector) -> Tensor:
    mask = mask_of(vector)
    batch = batch_of(
        ReMaxBatch,
        mask,
        token_rewards=vector.tensor("token_rewards"),
        reward_baselines=vector.tensor("reward_baselines"),
    )
    found = estimators.remax(batch)
    to_go = returns(vector.tensor("token_rewards"), mask, 1.0, "skip")
    left = to_go.where(~mask, 0.0)
    return padded(getattr(found, vector.params["output"]), mask) + left


def otb(vector: Vector) -> Tensor:
    params, mask = vector.params, mask_of(vector)
    fields = {"token_rewards": "token_rewards", "old_log_probs": "old", "sum_pi_squared": "sum_pi_squared"}
    batch = batch_of(
        OTBBatch, mask, group_ids=groups_of(vector), **{name: vector.tensor(role) for name, role in fields.items()}
    )
    if vector.has("is_weights"):
        assert params["is_squared"]
        batch = batch.corrected(Correction(batch, weights=vector.tensor("is_weights").flatten()))
    found = estimators.optimal_token_baseline(
        batch,
        positions="trained" if params["compact"] else "response",
        zero_tail=params["zero_tail"],
        importance_weighted=vector.has("is_weights"),
        eps=params["eps"],
    )
    return padded(found, mask)


ESTIMATORS: dict[str, Callable[[Vector], Tensor]] = {
    "whiten_only": whiten_only,
    "row_normalize": row_normalize,
    "miles_grpo": reward_everywhere,
    "nemo_raw": reward_everywhere,
    "miles_ppo": miles_ppo,
    "slime_ppo": slime_ppo,
    "miles_reinforce_plus_plus": reinforce_plus_plus(kl_at_masked=True),
    "slime_reinforce_plus_plus": reinforce_plus_plus(kl_at_masked=False),
    "miles_reinforce_plus_plus_baseline": reward_minus_kl,
    "gae_plain": plain_gae("ignored"),
    "gae_carry": plain_gae("skip"),
    "gae_zero_masked": plain_gae("step"),
    "nemo_gae": nemo_gae,
    "nemo_rpp": nemo_rpp,
    "nemo_baseline": nemo_baseline,
    "nemo_grpo": nemo_grpo,
    "gdpo": gdpo,
    "discounted_returns": cumulative_returns,
    "openrlhf_reinforce": openrlhf(estimators.raw_reward),
    "openrlhf_rloo": openrlhf(estimators.rloo),
    "openrlhf_reinforce_baseline": openrlhf(estimators.dr_grpo),
    "openrlhf_group_norm": openrlhf(lambda batch: estimators.grpo(batch, eps=1e-9)),
    "openrlhf_dr_grpo": openrlhf(estimators.dr_grpo),
    "openrlhf_gae": openrlhf(estimators.raw_reward, critic=True),
    "rpp_reset": reset_returns,
    "group_norm": on_trained(group_norm),
    "rloo": on_trained(lambda batch, params: estimators.rloo(batch, singleton=SINGLETON[params["singleton"]])),
    "opo": on_trained(lambda batch, params: estimators.opo(batch, singleton=SINGLETON[params["singleton"]])),
    "gpg": on_trained(
        lambda batch, params: estimators.gpg(batch, f_norm=params["f_norm"], singleton=SINGLETON[params["singleton"]])
    ),
    "maxrl": on_trained(
        lambda batch, params: estimators.max_rl(batch, eps=params["eps"], singleton=SINGLETON[params["singleton"]])
    ),
    "passk": on_trained(
        lambda batch, params: estimators.pass_at_k(batch, normalize=params["std"], eps=params.get("eps", 0.0))
    ),
    "remax": remax,
    "otb": otb,
}
