"""Per-token weights of every way to aggregate a loss."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.scalars import Mask

Weights = list[list[float]]


def _each(mask: Mask, weights: Sequence[float]) -> Weights:
    return [[weight if kept else 0.0 for kept in row] for row, weight in zip(mask, weights, strict=True)]


def _count(mask: Mask) -> list[int]:
    return [sum(row) for row in mask]


def token_mean(mask: Mask, *, denominator: float | None = None) -> Weights:
    """Every token 1 / N, with N the tokens that are masked in, or a given number (DAPO, arXiv 2503.14476)."""
    number = sum(_count(mask)) if denominator is None else denominator
    return _each(mask, [1 / number if number else 0.0] * len(mask))


def seq_mean_token_mean(mask: Mask, *, count_empty: bool = True, denominator: float | None = None) -> Weights:
    """Token mean of each sequence, then their mean (GRPO, arXiv 2402.03300).

    A sequence without a token that is masked in has loss 0; ``count_empty`` says whether it counts as a sequence.
    """
    counts = _count(mask)
    sequences = _sequences(counts, count_empty) if denominator is None else denominator
    return _each(mask, [1 / (n * sequences) if n and sequences else 0.0 for n in counts])


def seq_mean_token_sum(mask: Mask, *, count_empty: bool = True, denominator: float | None = None) -> Weights:
    """Token sum of each sequence, then the mean of the sums."""
    counts = _count(mask)
    sequences = _sequences(counts, count_empty) if denominator is None else denominator
    return _each(mask, [1 / sequences if n and sequences else 0.0 for n in counts])


def constant(mask: Mask, *, divisor: float) -> Weights:
    """Token sum over a constant; Dr.GRPO's is the number of sequences times a length (arXiv 2503.20783)."""
    return _each(mask, [1 / divisor] * len(mask))


def prompt_mean(mask: Mask, group_ids: Sequence[int], *, count_empty: bool = True) -> Weights:
    """Token mean over all responses of a prompt, then the mean over prompts."""
    counts = _count(mask)
    tokens = {group: sum(n for n, g in zip(counts, group_ids, strict=True) if g == group) for group in group_ids}
    prompts = _sequences(list(tokens.values()), count_empty)
    return _each(mask, [1 / (prompts * tokens[g]) if tokens[g] else 0.0 for g in group_ids])


def group_mean_token_mean(mask: Mask, group_ids: Sequence[int], *, count_empty: bool = True) -> Weights:
    """Token mean of each response, the mean over the responses of a prompt, then the mean over prompts."""
    counts = _count(mask)
    members = {g: [n for n, other in zip(counts, group_ids, strict=True) if other == g] for g in group_ids}
    prompts = sum(count_empty or any(found) for found in members.values())
    sizes = {g: _sequences(found, count_empty) for g, found in members.items()}
    return _each(mask, [1 / (n * sizes[g] * prompts) if n else 0.0 for n, g in zip(counts, group_ids, strict=True)])


def token_sum(mask: Mask) -> Weights:
    return _each(mask, [1.0] * len(mask))


def _sequences(counts: Sequence[int], count_empty: bool) -> int:
    return len(counts) if count_empty else sum(n > 0 for n in counts)
