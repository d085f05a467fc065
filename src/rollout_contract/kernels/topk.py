"""Distillation on a few outcomes per token: which ones, and what is done about the mass outside."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Support = Literal["student", "teacher", "union", "intersection", "xor"]
Outside = Literal["tail", "renormalise", "ignore"]

# Stands for log 0 where -inf would make the gradient of a logsumexp over nothing NaN.
LOG_ZERO = -1e30


def topk_support(
    student_ids: Int[Tensor, "tokens k"], teacher_ids: Int[Tensor, "tokens k"], support: Support
) -> tuple[Int[Tensor, "tokens _"], Bool[Tensor, "tokens _"]]:
    """The ids of both top-k lists side by side, and which of them belong to the set; an id is marked once.

    ``"student"`` and ``"teacher"`` return one list, ``"intersection"`` the student's.
    """
    everything = torch.ones_like(student_ids, dtype=torch.bool)
    if support == "student":
        return student_ids, everything
    if support == "teacher":
        return teacher_ids, torch.ones_like(teacher_ids, dtype=torch.bool)
    same = student_ids.unsqueeze(-1) == teacher_ids.unsqueeze(-2)
    if support == "intersection":
        return student_ids, same.any(-1)
    teacher_only = ~same.any(-2)
    student_part = everything if support == "union" else ~same.any(-1)
    return torch.cat([student_ids, teacher_ids], -1), torch.cat([student_part, teacher_only], -1)


def log_mass(log_probs: Float[Tensor, "tokens topk"], members: Bool[Tensor, "tokens topk"]) -> Float[Tensor, "tokens"]:
    """log of the probability of the set; about -1e30 for an empty set."""
    return log_probs.where(members, LOG_ZERO).logsumexp(-1)


def with_outside(
    log_probs: Float[Tensor, "tokens topk"],
    members: Bool[Tensor, "tokens topk"],
    outside: Outside,
    tail_floor: float = 1e-7,
) -> Float[Tensor, "tokens _"]:
    """Log-probs of the outcomes that are compared; -inf where an entry is no member of the set.

    ``"tail"`` appends one outcome for all the rest, log(1 - P(set)), with log P(set) at most -``tail_floor``;
    ``"renormalise"`` divides by P(set); ``"ignore"`` leaves the log-probs as they are.
    """
    masked = log_probs.where(members, float("-inf"))
    if outside == "ignore":
        return masked
    mass = log_mass(log_probs, members).unsqueeze(-1)
    if outside == "renormalise":
        return (log_probs - mass).where(members, float("-inf"))
    tail = torch.log(-torch.expm1(mass.clamp(max=-tail_floor)))
    return torch.cat([masked, tail], -1)


def set_weights(
    log_probs: Float[Tensor, "tokens topk"], members: Bool[Tensor, "tokens topk"], renormalise: bool
) -> Float[Tensor, "tokens topk"]:
    """Probabilities on the set, 0 elsewhere; they sum to 1 on a set that is not empty if ``renormalise``."""
    safe = log_probs.where(members, LOG_ZERO)
    weights = safe.softmax(-1) if renormalise else safe.exp()
    return weights.where(members, 0.0)


def floor_outside(
    log_probs: Float[Tensor, "tokens topk"],
    members: Bool[Tensor, "tokens topk"],
    entropy: Float[Tensor, "tokens"],
    floor: float,
) -> Float[Tensor, "tokens"]:
    """sum over outcomes outside the set of p (log p - floor), from the entropy of the whole distribution."""
    safe = log_probs.where(members, 0.0)
    inside = torch.where(members, safe.exp() * safe, 0.0).sum(-1)
    outside = 1 - torch.where(members, safe.exp(), 0.0).sum(-1)
    return -entropy - inside - floor * outside
