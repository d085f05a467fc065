"""Rewards on tokens, discounted sums, and temporal differences: the parts of REINFORCE++, ReMax and GAE.

``masked`` says what a masked token inside a response (a tool's answer) is to the recursion. ``skip``: it is no
transition; the recursion runs over the trainable tokens alone. ``step``: a time step with reward 0 and value 0, which
discounts what comes later. ``reset``: nothing passes it, so the tokens before it never see the final reward.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract.kernels.scan import following, reverse_scan

Masked: TypeAlias = Literal["skip", "step", "reset"]


def ends(sample_ids: Int[Tensor, "tokens"]) -> Bool[Tensor, "tokens"]:
    """True on the last token of each response."""
    return sample_ids != following(sample_ids, -1)


def last_trainable(
    loss_mask: Bool[Tensor, "tokens"], sample_ids: Int[Tensor, "tokens"], num_samples: int
) -> Bool[Tensor, "tokens"]:
    """True on the last trainable token of each response."""
    position = torch.arange(loss_mask.shape[0], device=loss_mask.device)
    none = position.new_full((num_samples,), -1)
    last = none.scatter_reduce(0, sample_ids, position.where(loss_mask, -1), reduce="amax")
    return position == last[sample_ids]


def discounted_sums(
    inputs: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    discount: float | Float[Tensor, "tokens"],
    masked: Masked = "skip",
) -> Float[Tensor, "tokens"]:
    """``x[t] = inputs[t] + discount * x[t + 1]`` inside each response.

    ``inputs`` should be 0 at masked tokens, unless they are meant to be seen by the tokens before them.
    """
    decays = torch.ones_like(inputs) * discount
    if masked == "skip":
        decays = decays.where(loss_mask, 1.0)
    elif masked == "reset":
        decays = decays * following(loss_mask.to(decays.dtype), 0.0)
    return reverse_scan(inputs, decays.masked_fill(ends(sample_ids), 0.0))


def temporal_differences(
    token_rewards: Float[Tensor, "tokens"],
    values: Float[Tensor, "tokens"],
    loss_mask: Bool[Tensor, "tokens"],
    sample_ids: Int[Tensor, "tokens"],
    gamma: float,
    final_values: Float[Tensor, "tokens"],
    masked: Masked = "skip",
) -> Float[Tensor, "tokens"]:
    """``reward + gamma * next value - value``: what :func:`discounted_sums` turns into advantages.

    The value after the last token of a response is that token's entry of ``final_values``, 0 for a finished response.
    Rewards and values of masked tokens are taken to be 0.
    """
    end = ends(sample_ids)
    values = values.where(loss_mask, 0.0)
    ahead = values
    if masked == "skip":
        known = loss_mask | end
        ahead = reverse_scan(values.where(loss_mask, final_values.where(end, 0.0)), (~known).to(values.dtype))
    next_values = final_values.where(end, following(ahead, 0.0))
    differences = token_rewards.where(loss_mask, 0.0) + gamma * next_values - values
    return differences.where(loss_mask, 0.0) if masked == "skip" else differences
