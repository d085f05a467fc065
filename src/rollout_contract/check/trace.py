"""Which inputs does the gradient of a tensor reach? A walk over the autograd graph."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from rollout_contract.losses.loss import Loss
from rollout_contract.schema.batch import RolloutBatch


def gradient_sources(loss: Loss | Tensor, *batches: RolloutBatch) -> frozenset[str]:
    """The names of the batch fields that a loss is differentiated through.

    Args:
        loss: any tensor with a graph, or a :class:`~rollout_contract.Loss`.
        batches: the batches whose fields are looked for; every batch that is alive when there are none.

    Returns:
        Field names, such as ``{"log_probs"}``; empty for a loss without a graph. A fixed field among them is a fault.

    >>> loss = policy_loss(micro, PPOClip()) + 0.01 * kl_loss(micro)
    >>> gradient_sources(loss)
    frozenset({'log_probs'})
    """
    value = loss.value if isinstance(loss, Loss) else loss
    found = [dict(_tensor_fields(batch)) for batch in (batches or _alive())]
    return frozenset(name for fields in found for name in reached(value, fields))


def reached(value: Tensor, candidates: Mapping[str, Tensor]) -> Iterator[str]:
    """The names of those tensors that the graph of ``value`` leads to."""
    live = {name: tensor for name, tensor in candidates.items() if tensor.requires_grad}
    if not live or not value.requires_grad:
        return
    edges = set(_edges(get_gradient_edge(value)))
    for name, tensor in live.items():
        edge = get_gradient_edge(tensor)
        if (edge.node, edge.output_nr) in edges:
            yield name


def _edges(start: GradientEdge) -> Iterable[tuple[object, int]]:
    """Every (node, output) that backward visits; the nodes are kept alive, so that each has one identity."""
    seen: dict[tuple[object, int], None] = {}
    todo = [(start.node, start.output_nr)]
    while todo:
        edge = todo.pop()
        if edge in seen:
            continue
        seen[edge] = None
        todo += [(node, output) for node, output in edge[0].next_functions if node is not None]
    return seen


def _tensor_fields(batch: RolloutBatch) -> Iterator[tuple[str, Tensor]]:
    for name, value in batch._state.values.items():
        if isinstance(value, Tensor):
            yield name, value


def _alive() -> list[RolloutBatch]:
    """Batches know nothing of each other, so the interpreter is asked; a test has time for it."""
    return [thing for thing in gc.get_objects() if RolloutBatch in type(thing).__mro__ and hasattr(thing, "_state")]
