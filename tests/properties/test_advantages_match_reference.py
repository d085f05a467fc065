"""Every advantage estimator of the registry equals the obvious implementation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract import distillation as _registers_its_estimators  # noqa: F401
from rollout_contract.advantages import (
    ESTIMATORS,
    LengthAdaptive,
    RoleBaselines,
    Whitening,
    place_rewards,
    role_conditioned,
    whiten,
)
from rollout_contract.kl_reward import AdaptiveKLCoefficient, kl_penalty, penalised_rewards
from rollout_contract.objectives import positive_example_weights
from rollout_contract.schemas import KLRewardBatch, PolicyBatch, RewardBatch, RewardComponentsBatch, RoleRewardBatch
from tests.properties.batches import Case, cases
from tests.properties.compare import FEW, assert_close
from tests.properties.setups import Setup, build, setup
from tests.reference import advantages as reference
from tests.reference import distillation, kl
from tests.reference.scalars import numbers, rows

Result = list[list[float]]
Expected = Callable[[Case], Any]


def rewards(case: Case) -> list[float]:
    return case.samples["rewards"]


def spread(per_sample: Callable[[Case], list[float]]) -> Expected:
    return lambda case: reference.spread(per_sample(case), case.mask)


def components(case: Case) -> list[list[float]]:
    return [rewards(case), case.samples["optimal_values"]]


def gae(case: Case, lam: Any = 0.95, value_lam: Any = None, gamma: float = 1.0) -> tuple[Result, Result]:
    inputs = (case.tokens["token_rewards"], case.tokens["values"], case.mask)
    actor = reference.gae(*inputs, gamma=gamma, lam=lam)
    critic = actor if value_lam is None else reference.gae(*inputs, gamma=gamma, lam=value_lam)
    return actor[0], critic[1]


def returns(case: Case, *, gamma: float, masked: str) -> Result:
    token_rewards = case.tokens["token_rewards"]
    if masked != "step":
        return reference.discounted_returns(token_rewards, case.mask, gamma=gamma, reset=masked == "reset")
    result = []
    for row, mask in zip(token_rewards, case.mask, strict=True):
        following, entries = 0.0, []
        for reward, keep in reversed(list(zip(row, mask, strict=True))):
            following = (reward if keep else 0.0) + gamma * following
            entries.append(following if keep else 0.0)
        result.append(entries[::-1])
    return result


def whitened(case: Case, values: Result) -> Result:
    """The library leaves fewer than two trained tokens as they are, and makes equal ones exactly 0."""
    valid = [v for vs, ms in zip(values, case.mask, strict=True) for v, keep in zip(vs, ms, strict=True) if keep]
    return values if len(valid) < 2 else reference.whiten(values, case.mask)


def otb(case: Case, *, compact: bool, zero_tail: bool) -> Result:
    inputs = [case.tokens[name] for name in ("token_rewards", "old_log_probs", "sum_pi_squared")]
    options = {"compact": compact, "zero_tail": zero_tail}
    return reference.optimal_token_baseline(*inputs, case.mask, case.group_ids, **options)


def length_shaped(case: Case, tool_token_cost: float) -> list[float]:
    """R - mean, after R (1 + clamp(1 - cost / mean cost of the best, 0, 1)) if R is best of its group and above 0."""
    costs = [sum(m) + tool_token_cost * (len(m) - sum(m)) for m in case.mask]
    shaped = []
    for i, reward in enumerate(rewards(case)):
        members = [j for j, group in enumerate(case.group_ids) if group == case.group_ids[i]]
        top = max(rewards(case)[j] for j in members)
        best = [costs[j] for j in members if rewards(case)[j] == top]
        centre = sum(best) / len(best)
        bonus = min(max(1 - costs[i] / centre, 0.0), 1.0) if reward == top and top > 0 and centre else 0.0
        shaped.append(reward * (1 + bonus))
    return reference.grpo(shaped, case.group_ids, std="none")


def opd(case: Case) -> Result:
    fixed = [rows(case.tokens[name]) for name in ("old_log_probs", "teacher_log_probs")]
    zeros = rows([[0.0] * len(m) for m in case.mask])
    return numbers(distillation.opd_advantages(zeros, *fixed, case.mask, coef=0.5))


def reverse_kl(case: Case) -> Result:
    fixed = rows([[0.0] * len(m) for m in case.mask]), rows(case.tokens["reverse_kl"])
    return numbers(distillation.reverse_kl_advantages(*fixed, case.mask, coef=0.5))


def minillm(case: Case, gamma: float, *, absolute: bool, length_norm: bool) -> Result:
    """With masked tokens taken out, as a tool token is no step of the policy."""
    found, scores = [], [case.tokens[f"{policy}_log_probs"] for policy in ("old", "teacher")]
    for old, teacher, mask in zip(*scores, case.mask, strict=True):
        kept = [t for t, keep in enumerate(mask) if keep]
        inputs = [rows([[values[t] for t in kept]]) for values in (old, teacher)]
        options = {"gamma": gamma, "absolute": absolute, "length_norm": length_norm}
        short = iter(distillation.minillm_advantages(*inputs, [[True] * len(kept)], **options)[0])
        found.append([float(next(short)) if keep else 0.0 for keep in mask])
    return found


def adaptive(alpha: float) -> Callable[[int], float]:
    return lambda n: 1 - 1 / max(alpha * n, 1.0)


VARIANTS: dict[str, list[tuple[dict[str, Any], Expected]]] = {
    "grpo": [
        ({}, spread(lambda c: reference.grpo(rewards(c), c.group_ids))),
        (
            {"scale": "batch", "eps": 1e-4},
            spread(lambda c: reference.grpo(rewards(c), c.group_ids, std="batch", eps=1e-4)),
        ),
        (
            {"singleton": "raw"},
            spread(lambda c: reference.grpo(rewards(c), c.group_ids, singleton="raw")),
        ),
        (
            {"scale": "none", "leave_one_out": True},
            spread(lambda c: reference.leave_one_out(rewards(c), c.group_ids)),
        ),
    ],
    "dr_grpo": [({}, spread(lambda c: reference.grpo(rewards(c), c.group_ids, std="none")))],
    "rloo": [
        ({}, spread(lambda c: reference.leave_one_out(rewards(c), c.group_ids))),
        ({"singleton": "raw"}, spread(lambda c: reference.leave_one_out(rewards(c), c.group_ids, singleton="raw"))),
    ],
    "opo": [({}, spread(lambda c: reference.opo(rewards(c), c.group_ids, c.mask)))],
    "gpg": [({"f_norm": 0.5}, spread(lambda c: reference.gpg(rewards(c), c.group_ids, f_norm=0.5)))],
    "pass_at_k": [
        ({}, spread(lambda c: reference.pass_at_k(rewards(c), c.group_ids, std=True))),
        ({"normalize": False}, spread(lambda c: reference.pass_at_k(rewards(c), c.group_ids, std=False))),
    ],
    "max_rl": [({}, spread(lambda c: reference.max_rl(rewards(c), c.group_ids)))],
    "raw_reward": [({}, spread(rewards))],
    "length_shaped_grpo": [({"tool_token_cost": 0.25}, spread(lambda c: length_shaped(c, 0.25)))],
    "gdpo": [
        ({"weights": [1.0, 0.3]}, spread(lambda c: reference.gdpo(components(c), c.group_ids, [1.0, 0.3]))),
    ],
    "discounted_returns": [
        ({"gamma": 0.9, "masked": masked}, lambda c, masked=masked: returns(c, gamma=0.9, masked=masked))
        for masked in ("skip", "step", "reset")
    ],
    "remax": [
        (
            {},
            lambda c: (
                reference.remax(c.tokens["token_rewards"], c.samples["reward_baselines"], c.mask),
                returns(c, gamma=1.0, masked="skip"),
            ),
        ),
    ],
    "reinforce_plus_plus": [({"gamma": 0.9}, lambda c: whitened(c, returns(c, gamma=0.9, masked="skip")))],
    "reinforce_plus_plus_baseline": [
        ({}, lambda c: whitened(c, reference.spread(reference.grpo(rewards(c), c.group_ids, std="none"), c.mask))),
    ],
    "gae": [
        ({}, gae),
        ({"gamma": 0.9, "lam": 0.8, "value_lam": 1.0}, lambda c: gae(c, 0.8, 1.0, 0.9)),
        ({"gamma": 0.9, "lam": LengthAdaptive(alpha=0.5)}, lambda c: gae(c, adaptive(0.5), gamma=0.9)),
    ],
    "optimal_token_baseline": [
        ({}, lambda c: otb(c, compact=False, zero_tail=False)),
        ({"zero_tail": True}, lambda c: otb(c, compact=False, zero_tail=True)),
        ({"positions": "trained", "zero_tail": True}, lambda c: otb(c, compact=True, zero_tail=True)),
    ],
    "opd_advantages": [({"coef": 0.5}, opd)],
    "reverse_kl_advantages": [({"coef": 0.5}, reverse_kl)],
    "minillm_advantages": [
        ({"gamma": 0.9}, lambda c: minillm(c, 0.9, absolute=False, length_norm=False)),
        ({"gamma": 0.9, "length_normalised": True}, lambda c: minillm(c, 0.9, absolute=False, length_norm=True)),
    ],
}
ELSEWHERE = {"role_conditioned"}


def test_every_estimator_has_a_reference() -> None:
    assert set(VARIANTS) | ELSEWHERE == set(ESTIMATORS)


def made(name: str, case: Case) -> Any:
    found: Setup = setup(ESTIMATORS[name].reads, case)
    if ESTIMATORS[name].reads is RewardComponentsBatch:
        found.fixed["reward_components"] = torch.tensor(components(case), dtype=torch.float64).T.contiguous()
    return found.build()


ALL = [(name, options, expected) for name, variants in VARIANTS.items() for options, expected in variants]


@pytest.mark.parametrize(("name", "options", "expected"), ALL, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(ALL)])
@given(case=cases(spreads=(0.3, 2.0)))
@FEW
def test_estimator(name: str, options: dict[str, Any], expected: Expected, case: Case) -> None:
    found, wanted = ESTIMATORS[name].function(made(name, case), **options), expected(case)
    if isinstance(found, Tensor):
        assert_close(found, wanted, what=f"{name} {options}")
        return
    for result, expectation, part in zip(found, wanted, found._fields, strict=True):
        assert_close(result, expectation, what=f"{name} {options} {part}")


def zeroed(values: Result, mask: list[list[bool]]) -> Result:
    return [[v if keep else 0.0 for v, keep in zip(vs, ms, strict=True)] for vs, ms in zip(values, mask, strict=True)]


FORMS = {"variance": "rsqrt(var+eps)", "floor": "rsqrt(max(var,eps))", "std": "1/(sqrt(var)+eps)"}


@pytest.mark.parametrize("epsilon_in", FORMS)
@pytest.mark.parametrize("bessel", [True, False])
@given(case=cases(), shift=st.sampled_from((0.0, 1e4)))
@FEW
def test_whiten(epsilon_in: Any, bessel: bool, case: Case, shift: float) -> None:
    values = [[v + shift for v in entries] for entries in case.tokens["returns"]]
    options = {"bessel": bessel, "eps": 1e-5}
    packed = case.packed("returns") + shift
    found = whiten(build(PolicyBatch, case), packed, Whitening(epsilon_in=epsilon_in, **options))
    expected = reference.whiten(values, case.mask, **options, form=FORMS[epsilon_in])
    valid = sum(map(sum, case.mask))
    assert_close(found, expected if valid > 1 else zeroed(values, case.mask), scale=1.0 + shift)


@given(case=cases())
@FEW
def test_rewards_per_token(case: Case) -> None:
    batch = build(RewardBatch, case)
    assert_close(place_rewards(batch), reference.token_rewards(rewards(case), case.mask))
    positive = positive_example_weights(batch.weighted("seq-mean-token-mean"))
    total = sum(any(m) for m in case.mask)
    trained = sum(any(m) for m, reward in zip(case.mask, rewards(case), strict=True) if reward > 0)
    share = [total / trained if trained and reward > 0 else 0.0 for reward in rewards(case)]
    assert_close(positive, reference.spread(share, case.mask))


@given(case=cases(), coefficient=st.sampled_from((0.0, 0.1)))
@FEW
def test_kl_in_the_reward(case: Case, coefficient: float) -> None:
    batch = build(KLRewardBatch, case)
    scores = [rows(case.tokens[name]) for name in ("old_log_probs", "ref_log_probs")]
    penalty = numbers(kl.kl(*scores, case.mask, estimator="k1"))
    assert_close(kl_penalty(batch), penalty)
    pairs = zip(zeroed(case.tokens["token_rewards"], case.mask), penalty, strict=True)
    expected = [[r - coefficient * k for r, k in zip(rs, ks, strict=True)] for rs, ks in pairs]
    assert_close(penalised_rewards(batch, coefficient), expected)


@given(observed=st.floats(0.0, 100.0), samples=st.integers(1, 1000))
@FEW
def test_adaptive_coefficient(observed: float, samples: int) -> None:
    controller = AdaptiveKLCoefficient(value=0.2, target=6.0, horizon=1e4)
    expected = kl.adaptive_coefficient(0.2, observed, 6.0, samples, 10_000)
    assert controller.updated(observed, samples).value == pytest.approx(expected)


@given(case=cases(), names=st.lists(st.sampled_from("abc"), min_size=6, max_size=6))
@FEW
def test_role_conditioned(case: Case, names: list[str]) -> None:
    roles = names[: len(case.mask)]
    made_for: Setup = setup(RewardBatch, case)
    host = {"response_lengths": case.lengths, "loss_mask": made_for.mask, "roles": roles}
    batch = RoleRewardBatch(**host, **made_for.fixed)
    start = RoleBaselines(("b", "z"), torch.tensor([0.5, 2.0], dtype=torch.float64))
    found = role_conditioned(batch, start, decay=0.8, update_first=True)
    wanted, state = reference.role_moving_average(rewards(case), roles, {"b": 0.5, "z": 2.0}, decay=0.8)
    assert_close(found.advantages, reference.spread(wanted, case.mask))
    assert found.baselines.as_dict() == pytest.approx(state)


def test_unscorable_rewards_are_left_out() -> None:
    nan = math.nan
    scores = torch.tensor([1.0, nan, 0.0, nan, 3.0], dtype=torch.float64)
    host = {"response_lengths": [1] * 5, "loss_mask": torch.ones(5, dtype=torch.bool), "group_ids": [0, 0, 0, 1, 1]}
    batch = RewardBatch(**host, rewards=scores)
    for name in ("grpo", "dr_grpo", "rloo", "opo", "pass_at_k", "max_rl", "gpg", "raw_reward"):
        found = ESTIMATORS[name].function(batch)
        assert torch.isfinite(found).all(), name
        assert found[1] == found[3] == 0.0, name
    assert_close(ESTIMATORS["grpo"].function(batch), [reference.grpo([1.0, nan, 0.0, nan, 3.0], [0, 0, 0, 1, 1])])
