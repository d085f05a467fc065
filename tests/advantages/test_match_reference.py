"""Every estimator against loops over samples and tokens in float64, on ragged batches with holes and groups of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rollout_contract import advantages as estimators
from rollout_contract.advantages import LengthAdaptive, RoleBaselines, Whitening, whiten
from tests.advantages.batches import Case, EveryInput, over_cases
from tests.reference import advantages as reference

PerSample = tuple[Callable[[EveryInput], Tensor], Callable[[Case], list[float]]]

PER_SAMPLE: dict[str, PerSample] = {
    "grpo": (estimators.grpo, lambda c: reference.grpo(c.rewards, c.group_ids)),
    "grpo eps": (lambda b: estimators.grpo(b, eps=0.3), lambda c: reference.grpo(c.rewards, c.group_ids, eps=0.3)),
    "grpo batch": (
        lambda b: estimators.grpo(b, scale="batch"),
        lambda c: reference.grpo(c.rewards, c.group_ids, std="batch"),
    ),
    "grpo raw": (
        lambda b: estimators.grpo(b, singleton="raw"),
        lambda c: reference.grpo(c.rewards, c.group_ids, singleton="raw"),
    ),
    "dr_grpo": (estimators.dr_grpo, lambda c: reference.grpo(c.rewards, c.group_ids, std="none")),
    "rloo": (estimators.rloo, lambda c: reference.leave_one_out(c.rewards, c.group_ids)),
    "rloo raw": (
        lambda b: estimators.rloo(b, singleton="raw"),
        lambda c: reference.leave_one_out(c.rewards, c.group_ids, singleton="raw"),
    ),
    "leave one out": (
        lambda b: estimators.grpo(b, scale="none", leave_one_out=True),
        lambda c: reference.leave_one_out(c.rewards, c.group_ids),
    ),
    "opo": (estimators.opo, lambda c: reference.opo(c.rewards, c.group_ids, c.mask)),
    "gpg": (estimators.gpg, lambda c: reference.gpg(c.rewards, c.group_ids)),
    "pass_at_k": (estimators.pass_at_k, lambda c: reference.pass_at_k(c.rewards, c.group_ids, std=True)),
    "pass_at_k plain": (
        lambda b: estimators.pass_at_k(b, normalize=False),
        lambda c: reference.pass_at_k(c.rewards, c.group_ids, std=False),
    ),
    "max_rl": (estimators.max_rl, lambda c: reference.max_rl(c.rewards, c.group_ids)),
    "gdpo": (
        lambda b: estimators.gdpo(b, weights=[0.7, 1.3]),
        lambda c: reference.gdpo(list(zip(*c.components, strict=True)), c.group_ids, [0.7, 1.3]) if c.mask else [],
    ),
    "raw_reward": (estimators.raw_reward, lambda c: c.rewards),
    "rae after": (
        lambda b: estimators.role_conditioned(b, RoleBaselines.of({"first": 0.5}), update_first=True).advantages,
        lambda c: reference.role_moving_average(c.rewards, c.roles, {"first": 0.5}, decay=0.95)[0],
    ),
}


def close(found: Tensor, expected: Tensor) -> None:
    """Rewards near a million keep ten digits of their differences."""
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", PER_SAMPLE)
@over_cases
def test_per_sample(name: str, case: Case) -> None:
    estimate, loop = PER_SAMPLE[name]
    close(estimate(case.batch()), case.flat(reference.spread(loop(case), case.mask)))


@over_cases
def test_role_averages(case: Case) -> None:
    found = estimators.role_conditioned(case.batch(), RoleBaselines.of({"judge": -2.0}), decay=0.8)
    _, expected = reference.role_moving_average(case.rewards, case.roles, {"judge": -2.0}, decay=0.8)
    assert found.baselines.as_dict() == pytest.approx(expected)


@over_cases
def test_gae(case: Case) -> None:
    batch = case.batch(final_values=torch.zeros(len(case.mask), dtype=torch.float64))
    found = estimators.gae(batch, gamma=0.9, lam=0.8)
    advantages, returns = reference.gae(case.token_rewards, case.values, case.mask, gamma=0.9, lam=0.8)
    close(found.advantages, case.flat(advantages))
    close(found.returns, case.flat(returns))


@over_cases
def test_gae_with_two_lambdas(case: Case) -> None:
    batch = case.batch(final_values=torch.zeros(len(case.mask), dtype=torch.float64))
    found = estimators.gae(batch, gamma=0.9, lam=LengthAdaptive(alpha=0.7), value_lam=1.0)

    def policy(length: int) -> float:
        return 1 - 1 / max(0.7 * length, 1.0)

    close(
        found.advantages, case.flat(reference.gae(case.token_rewards, case.values, case.mask, gamma=0.9, lam=policy)[0])
    )
    close(found.returns, case.flat(reference.gae(case.token_rewards, case.values, case.mask, gamma=0.9, lam=1.0)[1]))


@pytest.mark.parametrize("reset", [False, True])
@over_cases
def test_discounted_returns(reset: bool, case: Case) -> None:
    found = estimators.discounted_returns(case.batch(), gamma=0.9, masked="reset" if reset else "skip")
    close(found, case.flat(reference.discounted_returns(case.token_rewards, case.mask, gamma=0.9, reset=reset)))


@over_cases
def test_masked_tokens_as_steps(case: Case) -> None:
    """With no reward and no value at masked tokens, ``step`` is the plain recursion over every token."""
    everywhere = [[True] * len(row) for row in case.mask]
    rewards = [[r * m for r, m in zip(*rows, strict=True)] for rows in zip(case.token_rewards, case.mask, strict=True)]
    values = [[v * m for v, m in zip(*rows, strict=True)] for rows in zip(case.values, case.mask, strict=True)]
    mask = torch.tensor([keep for row in case.mask for keep in row], dtype=torch.bool)
    batch = case.batch(final_values=torch.zeros(len(case.mask), dtype=torch.float64))
    to_go = reference.discounted_returns(rewards, everywhere, gamma=0.9)
    close(estimators.discounted_returns(batch, gamma=0.9, masked="step"), case.flat(to_go) * mask)
    advantages, returns = reference.gae(rewards, values, everywhere, gamma=0.9, lam=0.8)
    found = estimators.gae(batch, gamma=0.9, lam=0.8, masked="step")
    close(found.advantages, case.flat(advantages) * mask)
    close(found.returns, case.flat(returns) * mask)


@over_cases
def test_remax(case: Case) -> None:
    expected = reference.remax(case.token_rewards, case.baselines, case.mask)
    close(estimators.remax(case.batch()).advantages, case.flat(expected))


@pytest.mark.parametrize("zero_tail", [False, True])
@pytest.mark.parametrize("compact", [False, True])
@over_cases
def test_optimal_token_baseline(compact: bool, zero_tail: bool, case: Case) -> None:
    positions = "trained" if compact else "response"
    found = estimators.optimal_token_baseline(case.batch(), positions=positions, zero_tail=zero_tail)
    expected = reference.optimal_token_baseline(
        case.token_rewards,
        case.log_probs,
        case.sum_pi_squared,
        case.mask,
        case.group_ids,
        compact=compact,
        zero_tail=zero_tail,
    )
    close(found, case.flat(expected))


@over_cases
def test_place_rewards(case: Case) -> None:
    close(estimators.place_rewards(case.batch()), case.flat(reference.token_rewards(case.rewards, case.mask)))


FORMS = {"variance": "rsqrt(var+eps)", "floor": "rsqrt(max(var,eps))", "std": "1/(sqrt(var)+eps)"}


@pytest.mark.parametrize("epsilon_in", FORMS)
@pytest.mark.parametrize("bessel", [True, False])
@over_cases
def test_whiten(epsilon_in: str, bessel: bool, case: Case) -> None:
    config = Whitening(bessel=bessel, eps=0.01, epsilon_in=epsilon_in)
    found = whiten(case.batch(), case.flat(case.values), config)
    if sum(map(sum, case.mask)) < 2:
        expected = [[v * m for v, m in zip(*rows, strict=True)] for rows in zip(case.values, case.mask, strict=True)]
    else:
        expected = reference.whiten(case.values, case.mask, bessel=bessel, eps=0.01, form=FORMS[epsilon_in])
    close(found, case.flat(expected))


@over_cases
def test_whiten_each_sample(case: Case) -> None:
    found = whiten(case.batch(), case.flat(case.values), Whitening(over="sample", eps=0.01))
    rows = [
        reference.whiten([values], [mask], eps=0.01)[0]
        if sum(mask) > 1
        else [v * m for v, m in zip(values, mask, strict=True)]
        for values, mask in zip(case.values, case.mask, strict=True)
    ]
    close(found, case.flat(rows))


@over_cases
def test_reinforce_plus_plus(case: Case) -> None:
    found = estimators.reinforce_plus_plus(case.batch(), gamma=0.9, whitening=Whitening(eps=0.01))
    returns = reference.discounted_returns(case.token_rewards, case.mask, gamma=0.9)
    if sum(map(sum, case.mask)) > 1:
        returns = reference.whiten(returns, case.mask, eps=0.01)
    close(found, case.flat(returns))
