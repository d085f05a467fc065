"""What each of two processes does in test_ranks: it trains its share of a step, and reports what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rollout_contract import Aggregation, PolicyBatch, policy_loss
from rollout_contract.metrics import Metrics
from rollout_contract.objectives import PPOClip

WORLD = 2
MASK = [[1, 1, 0], [1, 1, 1, 1], [0, 1], [0], [1, 0, 1]]
GROUPS = [5, 3, 3, 8, 5]
"""Group 5 lies on both ranks in every share below but one."""
SHARES: dict[str, tuple[list[int], list[int]]] = {
    "even": ([0, 1, 2], [3, 4]),
    "crossed": ([4, 0], [2, 1, 3]),
    "nothing on rank 1": ([0, 1, 2, 3, 4], []),
    "nothing trained on rank 0": ([3], [0, 1, 2, 4]),
}
AGGREGATIONS = [
    Aggregation(mode="constant", constant=7.0, count_empty=count_empty)
    if mode == "constant"
    else Aggregation(mode=mode, count_empty=count_empty)
    for count_empty in (False, True)
    for mode in (
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "constant",
        "prompt-mean",
        "group-mean-token-mean",
        "sum",
    )
]


def whole_step(with_groups: bool = True) -> PolicyBatch:
    count = sum(map(len, MASK))
    return PolicyBatch(
        response_lengths=[len(row) for row in MASK],
        loss_mask=MASK,
        group_ids=GROUPS if with_groups else None,
        row_ids=range(len(MASK)),
        old_log_probs=-torch.arange(1.0, count + 1, dtype=torch.float64) / 4,
        advantages=torch.linspace(-2.0, 2.0, count, dtype=torch.float64),
    )


def share_of(rank: int, share: str, with_groups: bool) -> PolicyBatch:
    """The samples of one rank as a step of its own, as a data loader would give them."""
    part = whole_step(with_groups).select(SHARES[share][rank])
    names = ("response_lengths", "row_ids", "loss_mask", "old_log_probs", "advantages")
    groups = part.group_ids if with_groups else None
    return PolicyBatch(group_ids=groups, **{name: getattr(part, name) for name in names})


def train(batch: PolicyBatch) -> tuple[float, dict[int, list[float]], Metrics]:
    """The loss, the gradient of each row, and the metrics."""
    leaf = (batch.old_log_probs.detach() - 0.05).requires_grad_()
    loss = policy_loss(batch.bind(log_probs=leaf), PPOClip())
    loss.backward()
    if leaf.grad is None:
        raise RuntimeError("no backward pass on this rank")
    rows = [row.tolist() for row in batch.layout.split(leaf.grad)]
    return loss.value.item(), dict(zip(batch.row_ids, rows, strict=True)), loss.metrics


def key(share: str, with_groups: bool, aggregation: Aggregation) -> tuple[str, bool, str]:
    return share, with_groups, f"{aggregation} {aggregation.count_empty}"


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    found: dict[Any, Any] = {}
    for share in SHARES:
        for with_groups in (True, False):
            batch = share_of(rank, share, with_groups)
            for aggregation in AGGREGATIONS:
                weighted = batch.weighted(aggregation, group=dist.group.WORLD)
                value, gradient, metrics = train(weighted)
                reduced = metrics.all_reduce(dist.group.WORLD).compute()
                found[key(share, with_groups, aggregation)] = (value, gradient, reduced, weighted.aggregation.is_local)
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
