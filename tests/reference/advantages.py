"""Advantage estimators on plain numbers. ``rewards`` is one number per sample, ``token_rewards`` is rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.reference.scalars import Mask

Floats = Sequence[Sequence[float]]
Result = list[list[float]]
Samples = list[float]


def _members(group_ids: Sequence[int], i: int) -> list[int]:
    return [j for j, group in enumerate(group_ids) if group == group_ids[i]]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float], bessel: bool = True) -> float:
    centre = _mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - bessel))


def _flat(values: Sequence[float]) -> bool:
    return max(values) == min(values)


def spread(per_sample: Sequence[float], mask: Mask) -> Result:
    """Each sample's number at each of its valid tokens, 0 at masked ones."""
    return [[a if keep else 0.0 for keep in row] for a, row in zip(per_sample, mask, strict=True)]


# -- one number per sample ---------------------------------------------------------------------------------------------


def grpo(
    rewards: Sequence[float],
    group_ids: Sequence[int],
    *,
    std: str = "group",
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Samples:
    """(R - mean) / (std + eps) inside the group (arXiv 2402.03300); std "none" is Dr.GRPO (arXiv 2503.20783).

    std "group" has Bessel's correction; "batch" is that of all rewards of the batch. NaN rewards are left out and get
    0. A group whose rewards are all equal gets exactly 0. A group of one: 0, or "raw" R (over 1 + eps).
    """
    everything = [r for r in rewards if not math.isnan(r)]
    batch_std = _std(everything) if len(everything) > 1 else 0.0

    def one(i: int) -> float:
        if math.isnan(rewards[i]):
            return 0.0
        members = [rewards[j] for j in _members(group_ids, i) if not math.isnan(rewards[j])]
        if len(members) == 1:
            return 0.0 if singleton == "zero" else rewards[i] / (1.0 if std == "none" else 1.0 + eps)
        if _flat(members):
            return 0.0
        scale = {"none": 1.0, "group": _std(members) + eps, "batch": batch_std + eps}[std]
        return (rewards[i] - _mean(members)) / scale

    return [one(i) for i in range(len(rewards))]


def leave_one_out(rewards: Sequence[float], group_ids: Sequence[int], *, singleton: str = "zero") -> Samples:
    """R - mean of the others = n / (n - 1) (R - mean) (RLOO, arXiv 2402.14740)."""

    def one(i: int) -> float:
        others = [rewards[j] for j in _members(group_ids, i) if j != i]
        return rewards[i] - _mean(others) if others else (rewards[i] if singleton == "raw" else 0.0)

    return [one(i) for i in range(len(rewards))]


def opo(rewards: Sequence[float], group_ids: Sequence[int], mask: Mask, *, singleton: str = "zero") -> Samples:
    """R - sum n R / sum n, n the valid tokens (arXiv 2505.23585)."""

    def one(i: int) -> float:
        members = _members(group_ids, i)
        if len(members) == 1:
            return rewards[i] if singleton == "raw" else 0.0
        tokens = sum(sum(mask[j]) for j in members)
        return rewards[i] - math.fsum(sum(mask[j]) * rewards[j] for j in members) / tokens if tokens else 0.0

    return [one(i) for i in range(len(rewards))]


def gpg(rewards: Sequence[float], group_ids: Sequence[int], *, f_norm: float = 1.0, singleton: str = "zero") -> Samples:
    """alpha (R - mean) / F, alpha = B / number of rewards that are not 0 (arXiv 2504.02546)."""
    alpha = len(rewards) / max(sum(r != 0 for r in rewards), 1)
    return [alpha * a / f_norm for a in grpo(rewards, group_ids, std="none", singleton=singleton)]


def pass_at_k(rewards: Sequence[float], group_ids: Sequence[int], *, std: bool, eps: float = 1e-6) -> Samples:
    """The best of a group gets R_1 - R_2 (over std + eps), all others 0 (arXiv 2503.19595)."""

    def one(i: int) -> float:
        members = _members(group_ids, i)
        ranked = sorted(members, key=lambda j: -rewards[j])
        values = [rewards[j] for j in members]
        if len(members) < 2 or ranked[0] != i or _flat(values):
            return 0.0
        return (rewards[i] - rewards[ranked[1]]) / (_std(values) + eps if std else 1.0)

    return [one(i) for i in range(len(rewards))]


def max_rl(rewards: Sequence[float], group_ids: Sequence[int], *, eps: float = 0.0, singleton: str = "zero") -> Samples:
    """(R - mean) / (mean + eps); 0 where the mean is not positive (arXiv 2602.02710)."""

    def one(i: int) -> float:
        members = [rewards[j] for j in _members(group_ids, i)]
        if len(members) == 1 and singleton == "raw":
            return rewards[i]
        centre = _mean(members)
        return (rewards[i] - centre) / (centre + eps) if centre > 0 else 0.0

    return [one(i) for i in range(len(rewards))]


def gdpo(
    components: Sequence[Sequence[float]], group_ids: Sequence[int], weights: Sequence[float], *, eps: float = 1e-6
) -> Samples:
    """Normalise each reward inside its group, add them up, normalise over the batch (arXiv 2601.05242)."""
    parts = [grpo(component, group_ids, eps=eps) for component in components]
    sums = [math.fsum(w * part[i] for w, part in zip(weights, parts, strict=True)) for i in range(len(group_ids))]
    if len(sums) < 2 or _flat(sums):
        return [0.0] * len(sums)
    return [(a - _mean(sums)) / _std(sums) for a in sums]


def role_moving_average(
    rewards: Sequence[float], roles: Sequence[object], baselines: dict[object, float], *, decay: float
) -> tuple[Samples, dict[object, float]]:
    """RAE: R - b after b <- decay b + (1 - decay) R, one b for each role, sample by sample (arXiv 2506.24119)."""
    kept = dict(baselines)
    result = []
    for reward, role in zip(rewards, roles, strict=True):
        kept[role] = decay * kept.get(role, 0.0) + (1 - decay) * reward
        result.append(reward - kept[role])
    return result, kept


# -- one number per token ----------------------------------------------------------------------------------------------


def last_valid(mask: Sequence[bool]) -> int | None:
    return max((t for t, keep in enumerate(mask) if keep), default=None)


def token_rewards(rewards: Sequence[float], mask: Mask, kl: Floats | None = None, kl_coef: float = 0.0) -> Result:
    """R at the last valid token, minus kl_coef x kl at every valid token."""
    result = []
    for i, row in enumerate(mask):
        entries = [-kl_coef * kl[i][t] if kl is not None and keep else 0.0 for t, keep in enumerate(row)]
        last = last_valid(row)
        if last is not None:
            entries[last] += rewards[i]
        result.append(entries)
    return result


def gae(
    rewards: Floats, values: Floats, mask: Mask, *, gamma: float, lam: float | Callable[[int], float]
) -> tuple[Result, Result]:
    """Advantages and returns over the valid tokens alone: a masked token is no transition (arXiv 1506.02438).

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}, V = A = 0 after the end; both 0 at masked
    tokens. ``lam`` may be a function of the number of valid tokens (VAPO, arXiv 2504.05118).
    """
    advantages, returns = spread([0.0] * len(mask), mask), spread([0.0] * len(mask), mask)
    for i, row in enumerate(mask):
        valid = [t for t, keep in enumerate(row) if keep]
        factor = lam(len(valid)) if callable(lam) else lam
        next_value = next_advantage = 0.0
        for t in reversed(valid):
            delta = rewards[i][t] + gamma * next_value - values[i][t]
            next_advantage = delta + gamma * factor * next_advantage
            next_value = values[i][t]
            advantages[i][t], returns[i][t] = next_advantage, next_advantage + next_value
    return advantages, returns


def discounted_returns(rewards: Floats, mask: Mask, *, gamma: float, reset: bool = False) -> Result:
    """G_t = r_t + gamma G_{t+1} over the valid tokens; ``reset``: a masked token cuts the sum, as verl has it."""
    result = spread([0.0] * len(mask), mask)
    for i, row in enumerate(mask):
        following = 0.0
        for t in reversed(range(len(row))):
            if row[t]:
                following = result[i][t] = rewards[i][t] + gamma * following
            elif reset:
                following = 0.0
    return result


def whiten(
    values: Floats, mask: Mask, *, bessel: bool = True, eps: float = 1e-8, form: str = "rsqrt(var+eps)"
) -> Result:
    """(x - mean) over the standard deviation of the valid tokens; 0 at masked ones."""
    valid = [v for vs, row in zip(values, mask, strict=True) for v, keep in zip(vs, row, strict=True) if keep]
    if not valid:
        return spread([0.0] * len(mask), mask)
    centre = _mean(valid)
    var = math.fsum((v - centre) ** 2 for v in valid) / max(len(valid) - (bessel and len(valid) > 1), 1)
    divisor = {
        "rsqrt(var+eps)": math.sqrt(var + eps),
        "rsqrt(max(var,eps))": math.sqrt(max(var, eps)),
        "1/(sqrt(var)+eps)": math.sqrt(var) + eps,
    }[form]
    return [
        [(v - centre) / divisor if keep else 0.0 for v, keep in zip(vs, row, strict=True)]
        for vs, row in zip(values, mask, strict=True)
    ]


def remax(rewards: Floats, baselines: Sequence[float], mask: Mask) -> Result:
    """Reward to go minus the reward of the greedy response (arXiv 2310.10505)."""
    to_go = discounted_returns(rewards, mask, gamma=1.0)
    return [
        [g - baselines[i] if keep else 0.0 for g, keep in zip(to_go[i], row, strict=True)] for i, row in enumerate(mask)
    ]


def optimal_token_baseline(
    rewards: Floats,
    log_probs: Floats,
    sum_pi_squared: Floats,
    mask: Mask,
    group_ids: Sequence[int],
    *,
    compact: bool,
    zero_tail: bool = False,
    eps: float = 1e-8,
    is_weights: Floats | None = None,
) -> Result:
    """G_t - sum G W / sum W over the group at the same position, W_t = sum up to t of 1 - 2 pi + sum pi^2 (verl, OTB).

    ``compact``: a position counts valid tokens only. ``zero_tail``: no baseline for the one longest response where it
    outlasts all the others.
    """
    to_go = discounted_returns(rewards, mask, gamma=1.0)
    places: list[dict[int, int]] = []
    energy: list[dict[int, float]] = []
    for i, row in enumerate(mask):
        valid = [t for t, keep in enumerate(row) if keep]
        places.append({(n if compact else t): t for n, t in enumerate(valid)})
        cumulated, sums = 0.0, {}
        for t in valid:
            weight = 1 - 2 * math.exp(log_probs[i][t]) + sum_pi_squared[i][t]
            cumulated += weight * (is_weights[i][t] ** 2 if is_weights is not None else 1.0)
            sums[t] = cumulated
        energy.append(sums)

    def baseline(i: int, place: int) -> float:
        members = _members(group_ids, i)
        lengths = sorted((sum(mask[j]) for j in members), reverse=True)
        if len(members) == 1:
            return 0.0
        if zero_tail and sum(mask[i]) > lengths[1] and place >= lengths[1]:
            return 0.0
        at = [(j, places[j][place]) for j in members if place in places[j]]
        weights = math.fsum(energy[j][t] for j, t in at)
        return math.fsum(to_go[j][t] * energy[j][t] for j, t in at) / (weights + eps)

    result = spread([0.0] * len(mask), mask)
    for i in range(len(mask)):
        for place, t in places[i].items():
            result[i][t] = to_go[i][t] - baseline(i, place)
    return result
