"""A trainer that computes each loss twice, by TRL's own code and by the library's, and keeps both."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rollout_contract.integrations.trl import ContractGRPOTrainer
from rollout_contract.integrations.trl.observe import PREFIX


class Side(NamedTuple):
    """One implementation on one micro-batch."""

    loss: float
    gradient: list[Tensor]
    metrics: dict[str, float]


class Compared(ContractGRPOTrainer):
    """Trains by the library's loss; ``sides`` has (TRL's, the library's) of every micro-batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sides: list[tuple[Side, Side]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        theirs = self._side(GRPOTrainer._compute_loss(self, model, inputs), self._logged())
        loss = super()._compute_loss(model, inputs)
        self.sides.append((theirs, self._side(loss, self._logged())))
        return loss

    def _logged(self) -> dict[str, float]:
        """What one side has logged, which is taken away, so that the other does not add to it."""
        taken = dict(self._unread[self._mode].take(over_ranks=False))
        of_losses = ("kl", "entropy", "clip_ratio/", "cispo_clip_ratio", "vespo/", "policy_loss", "aux_loss")
        for name in [name for name in self._metrics[self._mode] if name.startswith(of_losses)]:
            taken[name] = self._metrics[self._mode].pop(name)[-1]
        return taken

    def _side(self, loss: Tensor, logged: dict[str, float]) -> Side:
        if not torch.is_grad_enabled():
            return Side(loss.item(), [], logged)
        gradient = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
        return Side(loss.item(), [part.clone() for part in gradient], logged)


def assert_same(sides: list[tuple[Side, Side]], tolerance: float = 1e-5) -> None:
    """Loss, every parameter's gradient and every metric of TRL, of every micro-batch."""
    assert sides
    for place, (theirs, ours) in enumerate(sides):
        assert ours.loss == pytest.approx(theirs.loss, rel=tolerance, abs=tolerance), f"micro-batch {place}"
        for mine, his in zip(ours.gradient, theirs.gradient, strict=True):
            torch.testing.assert_close(mine, his, rtol=tolerance, atol=tolerance)
        named = {name: value for name, value in ours.metrics.items() if not name.startswith(PREFIX)}
        assert named == pytest.approx(theirs.metrics, rel=1e-4, abs=tolerance, nan_ok=True), f"micro-batch {place}"
