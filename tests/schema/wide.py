"""A batch with a field on every axis, and what plain slicing says that any of its rows hold."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rollout_contract import Fixed, Metadata, PerSample, PolicyBatch

NUM = 4
RESPONSES = [2, 0, 3, 1]
PROMPTS = [1, 2, 0, 3]
GROUPS = [9, 4, 9, 7]


class Wide(PolicyBatch):
    """A field on every axis, metadata, and host values for each sample."""

    top: Fixed[Float[Tensor, "tokens topk"]]
    ids: Fixed[Int[Tensor, "sequence"]]
    reward: Fixed[Float[Tensor, "batch"]]
    components: Fixed[Float[Tensor, "batch parts"]]
    baseline: Fixed[Float[Tensor, "groups"]]
    names: PerSample[str]
    note: Metadata[str]


def wide(row_ids: list[int] | None = None, **changes: Any) -> Wide:
    tokens, whole = sum(RESPONSES), sum(RESPONSES) + sum(PROMPTS)
    plain = {
        "response_lengths": RESPONSES,
        "prompt_lengths": PROMPTS,
        "group_ids": GROUPS,
        "row_ids": row_ids or [10, 11, 12, 13],
        "loss_mask": torch.tensor([1, 0, 1, 1, 0, 1]),
        "old_log_probs": -torch.arange(1.0, tokens + 1),
        "advantages": torch.arange(tokens).double(),
        "top": torch.arange(2.0 * tokens).reshape(tokens, 2),
        "ids": torch.arange(whole) + 100,
        "reward": torch.arange(4.0),
        "components": torch.arange(8.0).reshape(4, 2),
        "baseline": torch.tensor([90.0, 40.0, 70.0]),
        "names": ["a", "b", "c", "d"],
        "note": "x",
    }
    return Wide(**(plain | changes))


TENSORS = ["loss_mask", "old_log_probs", "advantages", "top", "ids", "reward", "components", "baseline"]


def expected(batch: Wide, rows: list[int]) -> dict[str, Any]:
    """What the samples of these rows hold, by plain slicing."""
    layout = batch.layout
    tokens = [slice(sum(RESPONSES[:row]), sum(RESPONSES[: row + 1])) for row in rows]
    total = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    whole = [slice(sum(total[:row]), sum(total[: row + 1])) for row in rows]
    groups = list(dict.fromkeys(GROUPS[row] for row in rows))
    found: dict[str, Any] = {}
    for name in TENSORS:
        values = getattr(batch, name)
        axis = type(batch).__plan__[name].axis
        parts = {
            "tokens": lambda values=values: [values[span] for span in tokens],
            "sequence": lambda values=values: [values[span] for span in whole],
            "batch": lambda values=values: [values[row : row + 1] for row in rows],
            "groups": lambda values=values: [values[i : i + 1] for i in map(layout.groups.index, groups)],
        }[axis]()
        found[name] = torch.cat([values[:0], *parts]).tolist()
    found["names"] = tuple(batch.names[row] for row in rows)
    found["row_ids"] = tuple(batch.row_ids[row] for row in rows)
    found["group_ids"] = tuple(GROUPS[row] for row in rows)
    found["response_lengths"] = tuple(RESPONSES[row] for row in rows)
    found["prompt_lengths"] = tuple(PROMPTS[row] for row in rows)
    return found


def content(batch: Wide) -> dict[str, Any]:
    host = ("names", "row_ids", "group_ids", "response_lengths", "prompt_lengths")
    return {name: getattr(batch, name).tolist() for name in TENSORS} | {name: getattr(batch, name) for name in host}
