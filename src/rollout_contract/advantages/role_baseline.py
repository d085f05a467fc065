"""RAE: the reward minus a moving average of what the same role got before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rollout_contract.advantages.estimator import Fraction, estimator, to_tokens
from rollout_contract.kernels.scan import forward_scan
from rollout_contract.losses.inputs import read
from rollout_contract.roles import FixedTensor
from rollout_contract.schemas import RoleRewardBatch


@dataclass(frozen=True, eq=False)
class RoleBaselines:
    """The moving average of each role's rewards: the state that goes from step to step.

    Attributes:
        roles: names, for example of an agent in a game.
        values: [roles], on any device; roles that are met for the first time start at 0.
    """

    roles: tuple[str, ...] = ()
    values: Tensor | None = None

    @classmethod
    def of(cls, averages: Mapping[str, float]) -> RoleBaselines:
        """From plain numbers, for example of a checkpoint."""
        return cls(tuple(averages), torch.tensor(list(averages.values()), dtype=torch.float32))

    def as_dict(self) -> dict[str, float]:
        """Plain numbers. Synchronises with the device."""
        return {} if self.values is None else dict(zip(self.roles, self.values.tolist(), strict=True))

    def covering(self, roles: Iterable[str], like: Tensor) -> RoleBaselines:
        """The same with an entry for every role of a batch, on the device of ``like``."""
        names = tuple(dict.fromkeys((*self.roles, *roles)))
        known = like.new_zeros(0) if self.values is None else self.values.to(like)
        return RoleBaselines(names, torch.cat([known, like.new_zeros(len(names) - len(known))]))


class RoleAdvantages(NamedTuple):
    """[tokens] advantages, and the baselines for the next step."""

    advantages: FixedTensor
    baselines: RoleBaselines


@estimator(
    formula="R - b of the role; then b = decay b + (1 - decay) R, sample by sample",
    paper="arXiv:2506.24119",
    known_as={"prime-rl": "algo.type=rae"},
)
def role_conditioned(
    batch: RoleRewardBatch,
    baselines: RoleBaselines,
    *,
    decay: Fraction = 0.95,
    update_first: bool = False,
) -> RoleAdvantages:
    """Role-conditioned advantage estimation (SPIRAL, arXiv:2506.24119), the same on every trained token of a sample.

    For players of a game, whose rewards sum to zero and whose roles are not equally good: each is compared with what
    the same role usually gets. Samples are taken in the order of the batch; a NaN reward gets 0 and leaves the average
    alone.

    Args:
        batch: rewards, and the role of each sample.
        baselines: the state that the last step returned; ``RoleBaselines()`` at the start.
        decay: how slowly the averages follow.
        update_first: take the average that already contains the sample's own reward (the order of the paper's text).
            This multiplies every advantage by ``decay`` and changes nothing else.

    Returns:
        advantages [tokens], 0 at masked tokens, and the new state. The old one is left as it is.
    """
    rewards = read(batch, "rewards")
    state = baselines.covering(batch.roles, rewards)
    number = {name: i for i, name in enumerate(state.roles)}
    role = torch.tensor([number[name] for name in batch.roles], dtype=torch.long, device=rewards.device)
    before, after = _moving_averages(rewards, role, _values(state), decay)
    advantages = (rewards - before).where(~rewards.isnan(), 0.0) * (decay if update_first else 1.0)
    return RoleAdvantages(to_tokens(batch, advantages), RoleBaselines(state.roles, after))


def _values(state: RoleBaselines) -> Tensor:
    return torch.zeros(0) if state.values is None else state.values


def _moving_averages(rewards: Tensor, role: Tensor, start: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """[batch] the average before each sample, and [roles] the averages after the last one.

    With the samples of each role side by side, every average is the recurrence ``b = decay b' + (1 - decay) R``.
    """
    order = role.argsort(stable=True)
    sorted_role, sorted_rewards = role[order], rewards[order]
    scored = ~sorted_rewards.isnan()
    inputs = ((1.0 - decay) * sorted_rewards).where(scored, 0.0)
    keeps = torch.full_like(sorted_rewards, decay).where(scored, 1.0)
    first = torch.ones_like(scored)
    first[1:] = sorted_role[1:] != sorted_role[:-1]
    averages = forward_scan((inputs + keeps * start[sorted_role]).where(first, inputs), keeps.where(~first, 0.0))
    before = start[sorted_role].where(first, averages.roll(1))
    last = torch.ones_like(scored)
    last[:-1] = first[1:]
    after = start.index_copy(0, sorted_role[last], averages[last])
    return torch.empty_like(before).index_copy(0, order, before), after
