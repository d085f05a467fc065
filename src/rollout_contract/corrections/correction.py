"""A correction for the mismatch between rollout and trainer: fixed weights, a narrowed mask, and how bad it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rollout_contract.configuration import current_settings
from rollout_contract.errors import Violation, raise_violations, violation_error
from rollout_contract.layout import Layout
from rollout_contract.metrics import Metric, Metrics
from rollout_contract.roles import Role
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schema.graph import cut_graph
from rollout_contract.schema.plan import FieldSpec

_WEIGHTS = FieldSpec("weights", Role.FIXED, False, dims=("tokens",), dtypes=("float32", "float64"))
_MASK = FieldSpec("mask", Role.FIXED, False, dims=("tokens",), family="bool", dtypes=("bool",))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a correction keeps of the batch that it was made from."""

    row_ids: tuple[int, ...]
    layout: Layout
    loss_mask: Tensor


@final
class Correction:
    """Fixed importance weights and a narrowed mask for the rows of one batch.

    Construction detaches and checks, so a live graph cannot reach the loss through a weight, whoever computed it.
    ``batch.corrected(correction)`` attaches it; it is refused by a batch with other rows.

    Args:
        batch: the batch that it was computed from.
        weights: [tokens] non-negative float32 or float64, multiplies the loss of each token; None for 1 everywhere.
            Finite on trained tokens; what lies elsewhere is replaced by 0.
        mask: [tokens] bool, a subset of the batch's ``loss_mask``: the tokens that stay. None keeps all. Rejection
            belongs here: a token whose weight is 0 still counts in the denominators of the loss, a masked one does not.
        metrics: of the batch's own ``loss_mask``, before any bound was applied.

    Two corrections of the same rows combine with ``&``: weights multiply, a token stays if it stays in both.

    Raises:
        ShapeError, DTypeError, DeviceError, NonFiniteError, MaskError: an argument breaks the rules above. What a
            value is, other than its shape, is checked at the level ``values`` (see ``settings``).
        LiveGraphError: weights carry a graph and ``settings(live_inputs="refuse")`` is on.
    """

    __slots__ = ("_mask", "_metrics", "_rows", "_weights")

    _rows: Rows
    _weights: Tensor | None
    _mask: Tensor | None
    _metrics: Metrics

    def __init__(
        self,
        batch: RolloutBatch | Rows,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "_rows", Rows(batch.row_ids, batch.layout, batch.loss_mask))
        violations: list[Violation] = []
        with torch.inference_mode(False):
            put(self, "_weights", self._take(_WEIGHTS, weights, violations))
            put(self, "_mask", self._take(_MASK, mask, violations))
            raise_violations("Correction", violations)
            raise_violations("Correction", self._value_violations())
            kept = self._rows.loss_mask
            put(self, "_weights", None if self._weights is None else self._weights.where(kept, 0.0))
            put(self, "_mask", None if self._mask is None else self._mask & kept)
        put(self, "_metrics", Metrics({n: Metric(m.kind, m.parts.detach()) for n, m in (metrics or {}).items()}))

    def __init_subclass__(cls) -> NoReturn:
        hint = "write a function from a batch to a Correction instead"
        wrong = Violation(cls.__name__, "schema", "Correction has no subclasses", "a subclass", hint)
        raise violation_error("Correction", wrong)

    # -- construction ----------------------------------------------------------------------------------------------

    def _take(self, spec: FieldSpec, value: Any, violations: list[Violation]) -> Tensor | None:
        """Detach one argument and check its structure."""
        if value is None:
            return None
        wrong = list(self._structure_violations(spec, value))
        violations += wrong
        if wrong:
            return None
        tensor, live = cut_graph(spec, value, current_settings())
        violations += [] if live is None else [live]
        return tensor

    def _structure_violations(self, spec: FieldSpec, value: Any) -> Iterator[Violation]:
        if not isinstance(value, Tensor):
            yield Violation(spec.name, "shape", "a tensor [tokens]", f"a {type(value).__name__}")
            return
        shape = [self._rows.layout.num_tokens]
        if list(value.shape) != shape:
            hint = "one entry for each response token; Layout.expand repeats one value per sample"
            yield Violation(spec.name, "shape", f"{shape}, the batch's tokens", str(list(value.shape)), hint)
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in spec.dtypes:
            yield Violation(spec.name, "dtype", " or ".join(spec.dtypes), dtype)
        device = self._rows.loss_mask.device
        if value.device != device:
            yield Violation(spec.name, "device", f"{device}, where the batch is", str(value.device))

    def _value_violations(self) -> Iterator[Violation]:
        kept = self._rows.loss_mask
        if kept.is_meta or isinstance(kept, FakeTensor) or current_settings().level_on(kept.device) != "values":
            return
        if self._weights is not None:
            wrong = kept & ~(torch.isfinite(self._weights) & (self._weights >= 0))
            hint = "bound the log-ratio before exp; a token that shall not train belongs out of the mask"
            yield from self._first("weights", "value", "a finite weight, at least 0", self._weights, wrong, hint)
        if self._mask is not None:
            hint = "a correction can only narrow the mask; take mask & batch.loss_mask"
            expected = "False where the batch's loss_mask is False"
            yield from self._first("mask", "mask", expected, self._mask, self._mask & ~kept, hint)

    def _first(
        self, field: str, rule: str, expected: str, values: Tensor, wrong: Tensor, hint: str
    ) -> Iterator[Violation]:
        if not bool(wrong.any()):
            return
        index = int(wrong.nonzero()[0])
        layout = self._rows.layout
        row, position = int(layout.sample_ids()[index]), int(layout.positions()[index])
        yield Violation(field, rule, expected, str(values[index].item()), hint, row, position)

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Tensor | None:
        """[tokens] finite, non-negative, without a graph; 0 on the tokens that the batch does not train."""
        return self._weights

    @property
    def mask(self) -> Tensor | None:
        """[tokens] bool: the tokens that stay."""
        return self._mask

    @property
    def metrics(self) -> Metrics:
        """How large the mismatch was, and what was cut."""
        return self._metrics

    @property
    def row_ids(self) -> tuple[int, ...]:
        """The samples that it was made for."""
        return self._rows.row_ids

    @property
    def response_lengths(self) -> tuple[int, ...]:
        return self._rows.layout.response_lengths

    def __and__(self, other: object) -> Correction:
        if not isinstance(other, Correction):
            return NotImplemented
        raise_violations("Correction & Correction", self._conflicts(other))
        weights = _both(self._weights, other._weights, torch.mul)
        mask = _both(self._mask, other._mask, torch.logical_and)
        return Correction(self._rows, weights=weights, mask=mask, metrics=self._metrics.merge(other._metrics))

    def _conflicts(self, other: Correction) -> Iterator[Violation]:
        if self.row_ids != other.row_ids or self.response_lengths != other.response_lengths:
            yield Violation("row_ids", "rows", "corrections of the same rows", "other rows, or another order")
        shared = sorted(set(self._metrics) & set(other._metrics))
        if shared:
            # Merging would count every token twice, as if the two were parts of one step.
            expected = "metrics with different names"
            yield Violation("metrics", "correction", expected, f"{', '.join(shared)} in both", "rename with prefixed()")

    # -- no back door ----------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise violation_error("Correction", Violation(name, "frozen", "a correction is frozen", "an assignment"))

    def __delattr__(self, name: str) -> NoReturn:
        raise violation_error("Correction", Violation(name, "frozen", "a correction is frozen", "a deletion"))

    def __reduce__(self) -> tuple[Any, ...]:
        rows = self._rows
        return _rebuild, (rows.row_ids, rows.layout, rows.loss_mask, self._weights, self._mask, dict(self._metrics))

    def __repr__(self) -> str:
        held = [name for name, tensor in (("weights", self._weights), ("mask", self._mask)) if tensor is not None]
        layout = self._rows.layout
        return f"Correction({layout.num_samples} samples, {layout.num_tokens} tokens: {', '.join(held) or 'nothing'})"


def _both(mine: Tensor | None, theirs: Tensor | None, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return join(mine, theirs)


def _rebuild(
    row_ids: tuple[int, ...],
    layout: Layout,
    loss_mask: Tensor,
    weights: Tensor | None,
    mask: Tensor | None,
    metrics: Mapping[str, Metric],
) -> Correction:
    return Correction(Rows(row_ids, layout, loss_mask), weights=weights, mask=mask, metrics=metrics)
