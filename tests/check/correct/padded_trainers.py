"""Correct losses on padded tensors, in the manner of the trainers that use them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rollout_contract import Fixed, Trainable

Rows = Float[Tensor, "batch time"]
Mask = Fixed[Bool[Tensor, "batch time"]]


def masked_mean(values: Rows, mask: Bool[Tensor, "batch time"]) -> Float[Tensor, ""]:
    return values.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def verl_vanilla(
    old_log_prob: Fixed[Rows],
    log_prob: Trainable[Rows],
    advantages: Fixed[Rows],
    response_mask: Mask,
    cliprange: float = 0.2,
    clip_ratio_c: float = 3.0,
) -> tuple[Tensor, dict[str, float]]:
    """Dual clip, token mean, metrics as numbers."""
    log_prob = log_prob.where(response_mask, 0.0)
    old = old_log_prob.detach().to(log_prob).where(response_mask, 0.0)
    adv = advantages.detach().to(log_prob).where(response_mask, 0.0)
    ratio = (log_prob - old).clamp(-20.0, 20.0).exp()
    clipped = torch.maximum(-adv * ratio, -adv * ratio.clamp(1 - cliprange, 1 + cliprange))
    losses = torch.where(adv < 0, torch.minimum(clipped, -adv * clip_ratio_c), clipped)
    hits = (clipped > -adv * ratio).float()
    return masked_mean(losses, response_mask), {"pg_clipfrac": masked_mean(hits, response_mask).item()}


def trl_grpo(
    per_token_logps: Trainable[Rows],
    old_per_token_logps: Fixed[Rows],
    ref_per_token_logps: Fixed[Rows],
    advantages: Fixed[Float[Tensor, "batch"]],
    completion_mask: Fixed[Int[Tensor, "batch time"]],
    beta: float = 0.04,
    epsilon: float = 0.2,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One advantage per row, an integer mask, sequence means, k3 in the loss."""
    mask = completion_mask.bool()
    logps = per_token_logps.where(mask, 0.0)
    old = old_per_token_logps.detach().to(logps).where(mask, 0.0)
    ref = ref_per_token_logps.detach().to(logps).where(mask, 0.0)
    coef_1 = (logps - old).exp()
    coef_2 = coef_1.clamp(1 - epsilon, 1 + epsilon)
    column = advantages.detach().to(logps).unsqueeze(1)
    kl = (ref - logps).exp() - (ref - logps) - 1
    per_token = (-torch.min(coef_1 * column, coef_2 * column) + beta * kl).where(mask, 0.0)
    lengths = mask.sum(-1).clamp(min=1)
    loss = (per_token.sum(-1) / lengths).sum() / max(len(logps), 1)
    return loss, {"kl": masked_mean(kl.detach(), mask)}


def openrlhf_gspo(
    log_probs: Trainable[Rows],
    old_log_probs: Fixed[Rows],
    advantages: Fixed[Rows],
    action_mask: Mask,
) -> Float[Tensor, ""]:
    """A ratio per sequence, its gradient through the mean."""
    new = log_probs.where(action_mask, 0.0)
    difference = new - old_log_probs.detach().to(new).where(action_mask, 0.0)
    ratio = (difference.sum(-1) / action_mask.sum(-1).clamp(min=1)).exp().unsqueeze(-1)
    adv = advantages.detach().to(log_probs).where(action_mask, 0.0)
    losses = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).where(action_mask, 0.0)
    return (losses.sum(-1) / action_mask.sum(-1).clamp(min=1)).sum() / max(len(losses), 1)


@dataclass(frozen=True)
class SkyRLDualClip:
    """A configured object that is called."""

    eps_clip: float = 0.2
    clip_ratio_c: float = 3.0

    def __call__(
        self,
        log_probs: Trainable[Rows],
        old_log_probs: Fixed[Rows],
        advantages: Fixed[Rows],
        loss_mask: Mask,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        new, old, adv = (torch.where(loss_mask, x, 0.0).to(log_probs) for x in (log_probs, old_log_probs, advantages))
        old, adv = old.detach(), adv.detach()
        ratio = (new - old).clamp(-20, 20).exp()
        clipped = torch.max(-ratio * adv, -ratio.clamp(1 - self.eps_clip, 1 + self.eps_clip) * adv)
        dual = torch.min(clipped, -adv * self.clip_ratio_c).where(adv < 0, clipped)
        kept = dual.where(loss_mask, 0.0)
        hits = (clipped > -ratio * adv).detach() & loss_mask
        return kept.sum() / loss_mask.sum().clamp(min=1), {"clip_ratio": masked_mean(hits.float(), loss_mask)}


SKYRL = SkyRLDualClip(eps_clip=0.28)


def nemorl_clipped_with_tis(
    next_logprobs: Trainable[Rows],
    prev_logprobs: Fixed[Rows],
    generation_logprobs: Fixed[Rows],
    advantages: Fixed[Rows],
    mask: Mask,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate times truncated importance weights that are constants."""
    new = next_logprobs.where(mask, 0.0)
    prev, generated, adv = (
        x.detach().where(mask, 0.0).to(new) for x in (prev_logprobs, generation_logprobs, advantages)
    )
    ratio = (new - prev).exp()
    weights = (prev - generated).exp().clamp(max=2.0)
    losses = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.28)) * weights
    return masked_mean(losses, mask), {"sampling_importance_ratio": masked_mean(weights, mask)}


def areal_value_loss(
    value: Trainable[Rows], old_value: Fixed[Rows], target_value: Fixed[Rows], loss_mask: Mask, eps: float = 0.2
) -> Float[Tensor, ""]:
    """Clipped value loss with the factor 1/2."""
    value = value.where(loss_mask, 0.0)
    old, target = (x.detach().where(loss_mask, 0.0).to(value) for x in (old_value, target_value))
    clipped = old + (value - old).clamp(-eps, eps)
    losses = 0.5 * torch.max((value - target).square(), (clipped - target).square())
    return losses.where(loss_mask, 0.0).sum() / loss_mask.count_nonzero().clamp(min=1)


def forge_simple_grpo(
    logprobs: Trainable[Rows],
    ref_logprobs: Fixed[Rows],
    advantages: Fixed[Float[Tensor, "batch 1"]],
    padding_mask: Mask,
) -> Float[Tensor, ""]:
    """Ratio 1 in value, live in gradient; advantages as a column."""
    logprobs = logprobs.where(padding_mask, 0.0)
    ref = ref_logprobs.detach().where(padding_mask, 0.0).to(logprobs)
    kl = (ref - logprobs).exp() - (ref - logprobs) - 1
    policy = (logprobs - logprobs.detach()).exp() * advantages.detach().to(logprobs)
    losses = -(policy - 0.1 * kl).where(padding_mask, 0.0)
    return (losses.sum(1) / padding_mask.sum(1).clamp(min=1)).sum() / max(len(losses), 1)


def verl_grpo_advantage(
    token_level_rewards: Fixed[Rows], response_mask: Mask, group_ids: Int[Tensor, "batch"]
) -> Fixed[Rows]:
    """Group statistics, given at every token."""
    with torch.no_grad():
        scores = token_level_rewards.where(response_mask, 0.0).sum(-1)
        same = (group_ids[:, None] == group_ids[None, :]).to(scores)
        count = same.sum(1).clamp(min=1)
        centred = scores - same @ scores / count
        deviation = (same @ centred.square() / count).sqrt()
        return (centred / (deviation + 1e-6)).unsqueeze(-1) * response_mask


def token_scores(
    logits: Float[Tensor, "batch time vocab"], labels: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    return logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def shifted(logits: Float[Tensor, "batch time vocab"]) -> Float[Tensor, "batch time-1 vocab"]:
    return logits[:, :-1]


def pairwise_ranking(rewards: Trainable[Float[Tensor, "batch"]], scores: Fixed[Float[Tensor, "batch"]]) -> Tensor:
    """An outer product that is written as one."""
    better = (scores.detach()[:, None] > scores.detach()[None, :]).to(rewards)
    return -(better * (rewards[:, None] - rewards[None, :]).sigmoid().log()).sum()
