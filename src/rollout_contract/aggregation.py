"""Aggregation: how token losses become one number, as one fixed weight per token.

The loss is ``sum_t weight_t * term_t``. The weights are computed once, from the counts of the whole optimiser step, and
travel with the batch. So loss and gradient cannot depend on how the step is split into micro-batches or over ranks, and
tokens that a correction rejects leave the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from rollout_contract.errors import Violation
from rollout_contract.inference import ordinary_tensors
from rollout_contract.kernels.precision import widest
from rollout_contract.kernels.segments import segment_count
from rollout_contract.layout import Layout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PADDING_ROW_ID = -1
"""The row id of samples that only fill a batch up (see ``RolloutBatch.pad_to``)."""

Mode: TypeAlias = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant", "prompt-mean", "group-mean-token-mean", "sum"
]


class Aggregation(BaseModel):
    r"""How token losses become one number. With mask m, n_i = sum_t m_it, S the samples that count:

    ======================  ============================================  =======================================
    mode                    loss                                          known as
    ======================  ============================================  =======================================
    token-mean              sum_it m l / sum_i n_i                        DAPO (arXiv:2503.14476), ``dapo``, ``bnpo``
    seq-mean-token-mean     1/S sum_i (sum_t m l / n_i)                   GRPO (arXiv:2402.03300), ``sequence_mean``
    seq-mean-token-sum      1/S sum_i sum_t m l
    constant                1/(S c) sum_it m l, with c = ``constant``     Dr.GRPO (arXiv:2503.20783), ``dr_grpo``
    prompt-mean             1/G sum_g (sum_{it in g} m l / sum_{i in g} n_i)   ``prompt_mean``, ``rollout_mean``
    group-mean-token-mean   1/G sum_g 1/S_g sum_{i in g} (sum_t m l / n_i)
    sum                     sum_it m l
    ======================  ============================================  =======================================

    Attributes:
        mode: see the table.
        constant: the divisor per sample of mode ``constant``, for example the longest allowed response.
        count_empty: whether a sample (or group) without any trained token counts in S (or G). By default it does not:
            it contributes no loss, and counting it would shrink everybody else's. TRL and SkyRL count it; verl and
            OpenRLHF do not.
        scale: multiplies every weight.
        is_local: False when counts were summed over ranks, so that they cannot be computed anew on one rank.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    mode: Mode = "token-mean"
    constant: float | None = Field(default=None, gt=0.0)
    count_empty: bool = False
    scale: float = 1.0
    is_local: bool = True

    def __str__(self) -> str:
        constant = "" if self.constant is None else f" {self.constant:g}"
        return f"{self.mode}{constant}" + ("" if self.scale == 1.0 else f", scaled by {self.scale:g}")

    @model_validator(mode="after")
    def _constant_belongs_to_constant(self) -> Aggregation:
        if (self.mode == "constant") != (self.constant is not None):
            raise ValueError('mode "constant" takes constant=..., the divisor per sample; no other mode does')
        return self


def denominator_violations(
    aggregation: Aggregation, group: ProcessGroup | None, denominator: Tensor | float | None
) -> Iterator[Violation]:
    """A denominator that is no positive number, or that the mode has no use for."""
    if denominator is None:
        return
    if aggregation.mode in ("sum", "prompt-mean", "group-mean-token-mean"):
        expected = "a mode with one denominator: token-mean, seq-mean-token-mean, seq-mean-token-sum, constant"
        yield Violation("denominator", "metadata", expected, aggregation.mode)
    if group is not None:
        yield Violation("denominator", "metadata", "a group to count over, or the count itself", "both")
    if isinstance(denominator, Tensor):
        if denominator.dim():
            yield Violation("denominator", "shape", "one number", f"a tensor of shape {list(denominator.shape)}")
    elif not 0 < denominator < math.inf:
        yield Violation("denominator", "metadata", "a number above 0", f"{denominator}")


def step_weights(
    layout: Layout,
    loss_mask: Tensor,
    aggregation: Aggregation,
    group: ProcessGroup | None = None,
    denominator: Tensor | float | None = None,
    row_ids: Sequence[int] = (),
) -> Tensor:
    """[tokens] fixed weights of a whole step; exactly 0 where the mask is off.

    In float64, so that they cost no digits; a loss converts them to the dtype of its log-probs.

    Args:
        layout: lengths and groups of the step on this rank.
        loss_mask: [tokens] bool.
        aggregation: the mode.
        group: ranks that hold the rest of the step. A group of samples may be spread over them.
        denominator: in place of what is counted here; see ``RolloutBatch.weighted``.
        row_ids: of the samples; one that is padding never counts, not even as an empty sample.
    """
    with ordinary_tensors(), torch.no_grad():
        dtype = widest(loss_mask.device)
        mask = loss_mask.to(dtype)
        counts = _sample_counts(layout, loss_mask, aggregation, row_ids)
        per_sample = _per_sample(layout, loss_mask, counts, aggregation, dtype, group, denominator)
        return mask * layout.expand(per_sample * aggregation.scale)


def _sample_counts(layout: Layout, loss_mask: Tensor, aggregation: Aggregation, row_ids: Sequence[int]) -> Tensor:
    """[batch]: 1 for a sample that counts in S, 0 for another."""
    count = segment_count(loss_mask, layout.sample_ids(loss_mask.device), layout.num_samples)
    counts = torch.ones_like(count) if aggregation.count_empty else (count > 0).to(count.dtype)
    if PADDING_ROW_ID in row_ids:
        real = torch.tensor([row_id != PADDING_ROW_ID for row_id in row_ids], device=count.device)
        counts = counts.where(real, 0)
    return counts


def _per_sample(
    layout: Layout,
    loss_mask: Tensor,
    counts: Tensor,
    aggregation: Aggregation,
    dtype: torch.dtype,
    group: ProcessGroup | None,
    denominator: Tensor | float | None,
) -> Tensor:
    """[batch]: the weight that every trained token of a sample has."""
    ids = layout.sample_ids(loss_mask.device)
    count = segment_count(loss_mask, ids, layout.num_samples)
    ones = torch.ones(layout.num_samples, dtype=dtype, device=loss_mask.device)
    mode = aggregation.mode
    if mode == "sum":
        return ones
    if mode == "token-mean":
        return ones / _total(count, dtype, group, denominator)
    if mode in ("prompt-mean", "group-mean-token-mean"):
        return _per_group(layout, count, counts, aggregation, dtype, group)
    samples = _total(counts, dtype, group, denominator)
    if mode == "seq-mean-token-mean":
        return 1.0 / (count.clamp(min=1).to(dtype) * samples)
    divisor = aggregation.constant if aggregation.constant is not None else 1.0
    return ones / (samples * divisor)


def _per_group(
    layout: Layout,
    count: Tensor,
    counts: Tensor,
    aggregation: Aggregation,
    dtype: torch.dtype,
    group: ProcessGroup | None,
) -> Tensor:
    index = layout.group_index(count.device)
    rows = torch.stack([count, counts], 1)
    sums = rows.new_zeros(layout.num_groups, 2).index_add(0, index, rows)
    sums, groups = _groups_over_ranks(layout, sums, group)
    tokens, samples = sums[index, 0].clamp(min=1).to(dtype), sums[index, 1].clamp(min=1).to(dtype)
    if aggregation.mode == "prompt-mean":
        return 1.0 / (tokens * groups)
    return 1.0 / (count.clamp(min=1).to(dtype) * samples * groups)


def _groups_over_ranks(layout: Layout, sums: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Tokens of each group over all ranks, its samples that count, and how many groups hold such samples."""
    if group is None:
        return sums, (sums[:, 1] > 0).sum().clamp(min=1)
    # Without group ids every sample is its own group, on whichever rank it lies.
    rank = torch.distributed.get_rank(group) if layout.group_ids is None else None
    names = [(rank, name) for name in layout.groups]
    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, dict(zip(names, sums.tolist(), strict=True)), group)
    totals: dict[tuple[int | None, int], list[int]] = {}
    for part in parts:
        for name, row in part.items():
            totals[name] = [a + b for a, b in zip(totals.get(name, [0, 0]), row, strict=True)]
    number = sum(row[1] > 0 for row in totals.values())
    mine = sums.new_tensor([totals[name] for name in names]).reshape(-1, 2)
    return mine, sums.new_tensor(max(number, 1))


def _total(
    counts: Tensor, dtype: torch.dtype, group: ProcessGroup | None, denominator: Tensor | float | None
) -> Tensor | float:
    """What was counted elsewhere, or the sum of the counts over the ranks; at least 1."""
    if isinstance(denominator, Tensor):
        return denominator.to(dtype)
    return _over_ranks(counts.sum(), group).clamp(min=1).to(dtype) if denominator is None else denominator


def _over_ranks(count: Tensor, group: ProcessGroup | None) -> Tensor:
    if group is not None:
        count = count.clone()
        torch.distributed.all_reduce(count, group=group)
    return count
