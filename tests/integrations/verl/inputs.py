"""Random inputs of a policy loss, and what a loss makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH = 5, 7
AGG_MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
GLOBAL: dict[str, Any] = {"dp_size": 2, "batch_num_tokens": 61, "global_batch_size": 11, "loss_scale_factor": 9}
"""What verl counts over the global batch; nothing of it has to do with the batches here."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a policy loss."""

    old_log_prob: Tensor
    log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor
    rollout_is_weights: Tensor | None = None

    def result(self, function: Any, agg_mode: str, config: Any) -> tuple[float, Tensor, dict[str, Any]]:
        """Value, gradient and metrics."""
        live = self.log_prob.clone().requires_grad_()
        loss, metrics = function(
            old_log_prob=self.old_log_prob,
            log_prob=live,
            advantages=self.advantages,
            response_mask=self.response_mask,
            loss_agg_mode=agg_mode,
            config=config,
            rollout_is_weights=self.rollout_is_weights,
        )
        loss.backward()
        assert live.grad is not None
        return loss.item(), live.grad, metrics

    def with_garbage(self) -> Inputs:
        """The same inputs with NaN, infinities and huge numbers wherever the mask is off."""
        off = self.response_mask == 0
        wild = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30]).repeat(off.numel())[: off.numel()]
        wild = wild.reshape(off.shape).to(self.log_prob.dtype)
        names = [
            "old_log_prob",
            "log_prob",
            "advantages",
            *([] if self.rollout_is_weights is None else ["rollout_is_weights"]),
        ]
        return replace(self, **{name: torch.where(off, wild, getattr(self, name)) for name in names})


def random_inputs(
    seed: int,
    *,
    weights: bool = False,
    per_sample: bool = False,
    mask_dtype: torch.dtype = torch.bool,
    spread: float = 0.4,
) -> Inputs:
    """A batch in which some tokens are clipped, some are a tool's, and one row has none to train."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    log_prob = -normal(ROWS, WIDTH).abs() - 0.05
    lengths = torch.randint(1, WIDTH + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(WIDTH) < lengths) & (torch.rand(ROWS, WIDTH, generator=generator) > 0.2)
    mask[0, 0], mask[1] = True, False
    return Inputs(
        old_log_prob=(log_prob - spread * normal(ROWS, WIDTH)).clamp(max=-1e-3),
        log_prob=log_prob,
        advantages=normal(ROWS, 1).expand(ROWS, WIDTH).clone() if per_sample else normal(ROWS, WIDTH),
        response_mask=mask.to(mask_dtype),
        rollout_is_weights=normal(ROWS, WIDTH).exp().clamp(max=2.0) if weights else None,
    )


class Options(SimpleNamespace):
    """Stands for verl's configuration where verl is not installed."""

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def options(**changes: Any) -> Options:
    plain = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
    return Options(**(plain | {"tau_pos": 1.0, "tau_neg": 1.05, "policy_loss": {}, "global_batch_info": {}} | changes))
