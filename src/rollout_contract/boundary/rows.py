"""From a trainer's rows to the packed form, and back into the trainer's own container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rollout_contract.boundary.names import Key, Names
from rollout_contract.errors import Violation, violation_error
from rollout_contract.layout import Layout
from rollout_contract.schema.plan import FieldSpec
from rollout_contract.schema.shapes import short_dtype

_NO_ENTRY = -1


@dataclass(frozen=True)
class Rows:
    """How the rows of one dict are arranged.

    Attributes:
        names: says what cannot be seen.
        layout: the lengths of the rows; of padded ones either without the padding, or the whole width.
        width: of padded rows that are taken whole, so that nothing is gathered or read from a device: what is padding
            is not in the loss mask. None if the layout has the lengths.
    """

    names: Names
    layout: Layout
    width: int | None = None

    @classmethod
    def of(cls, names: Names, data: Mapping[str, Any], lengths: Any, mask: Any) -> Rows:
        """The rows of a dict.

        Args:
            data: the entries of the trainer's dict, without those that are None.
            lengths: those that were passed beside the dict.
            mask: the loss mask, which has lengths too.

        Raises:
            MissingFieldError: nothing says how long the rows are.
        """
        if lengths is not None:
            # They may be those of a rank's part of each response, to which the totals do not belong.
            return cls(names.but(totals=None), Layout(_ints(lengths)))
        if names.lengths is not None and names.lengths in data:
            return cls(names, Layout(_ints(data[names.lengths])))
        if names.offsets is not None and names.offsets in data:
            return cls(names, Layout([after - before for before, after in pairwise(_ints(data[names.offsets]))]))
        if isinstance(mask, Tensor) and not mask.is_nested:
            if mask.dim() < 2 or names.form == "packed":
                return cls(names, Layout([mask.numel()]))
            return cls(names, Layout([mask.shape[1]] * mask.shape[0]), mask.shape[1])
        if mask is None:
            raise violation_error("Rows", Violation("loss_mask", "missing", "a mask of the trained tokens", "nothing"))
        return cls(names, Layout([len(mask)] if _is_flat(mask) else [0 if row is None else len(row) for row in mask]))

    def prompt_lengths(self, data: Mapping[str, Any]) -> list[int] | None:
        """Lengths of the prompts, where the dict has those of whole sequences."""
        if self.names.totals is None or self.names.totals not in data:
            return None
        totals = _ints(data[self.names.totals])
        return [total - own for total, own in zip(totals, self.layout.response_lengths, strict=False)]

    # -- packing ---------------------------------------------------------------------------------------------------

    def pack(self, spec: FieldSpec, key: Key, value: Any, fill: float = 0.0) -> Any:
        """What the constructor of a schema takes: a packed tensor, or a list of rows.

        Args:
            fill: stands where a row of the other alignment has no entry.

        Raises:
            ShapeError: padded rows do not have the width of the others.
        """
        if spec.axis != "tokens":
            return value
        if key.per_row and _lacks_token_axis(spec, value):
            return self.layout.expand(torch.as_tensor(value).reshape(-1))
        aligned = self.names.aligned(key) == self.names.alignment
        if not isinstance(value, Tensor) or value.is_nested:
            return value if aligned else self._shifted_rows(value, fill)
        if value.dim() == len(spec.dims) + 1:
            if self.names.form != "packed":
                return self._pack_padded(spec, value if aligned else self._shifted(value, 1, fill, self.width))
            value = value.flatten(0, 1)
        return value if aligned else torch.cat(self._shifted_rows(self.layout.split(value), fill))

    def _pack_padded(self, spec: FieldSpec, padded: Tensor) -> Tensor:
        samples, width = padded.shape[:2]
        fits = width >= self.layout.max_length if self.width is None else width == self.width
        if samples != self.layout.num_samples or not fits:
            columns = f"at least {self.layout.max_length}" if self.width is None else f"{self.width}"
            expected = f"[{self.layout.num_samples} rows, {columns} columns]"
            found = f"{short_dtype(padded)}{list(padded.shape)}"
            hint = "the fields of a dict have one width; what belongs to no response is not in the mask"
            raise violation_error("Rows", Violation(spec.name, "shape", expected, found, hint))
        return padded.flatten(0, 1) if self.width else self.layout.pack(padded, side=self.names.padding)

    def _shifted_rows(self, rows: Any, fill: float) -> list[Any]:
        """Rows of the other alignment in that of the mask; None stays, and so does what is too much or too little."""
        lengths = self.layout.response_lengths
        shifted = [
            row if row is None else self._shifted(row, 0, fill, n) for row, n in zip(rows, lengths, strict=False)
        ]
        return [*shifted, *rows[len(shifted) :]]

    def _shifted(self, row: Any, dim: int, fill: float, length: int | None) -> Any:
        """A row in the alignment of the mask: one place later for tokens, one earlier for predictions.

        Rows of predictions may be one entry shorter than those of tokens, since nothing predicts the first. A row of
        any other length is left as it is, for the build to report.
        """
        later = self.names.alignment == "token"
        size = row.shape[dim] if isinstance(row, Tensor) else len(row)
        length = size if length is None else length
        if size == 0 or size - length not in ((0, -1) if later else (0, 1)):
            return row
        if not isinstance(row, Tensor):
            return [fill, *row][:length] if later else [*row[1:], *[fill] * (length - size + 1)]
        edge = row.new_full((*row.shape[:dim], 1, *row.shape[dim + 1 :]), fill)
        if later:
            return torch.cat([edge, row], dim).narrow(dim, 0, length)
        return torch.cat([row.narrow(dim, 1, size - 1), edge], dim).narrow(dim, 0, length)

    # -- putting back ----------------------------------------------------------------------------------------------

    def put_back(self, spec: FieldSpec, key: Key, value: Any, packed: Tensor) -> Any:
        """A container like ``value``, with the entries of ``packed``; what it has beside them stays."""
        if not isinstance(value, Tensor):
            if _is_flat(value):
                return type(value)(_merged_list(value, packed))
            return type(value)(map(_merged, value, self.layout.split(packed)))
        if value.is_nested:
            return torch.nested.as_nested_tensor(
                list(map(_merged, value, self.layout.split(packed))), layout=value.layout
            )
        places = torch.arange(value.numel(), device=value.device).reshape(value.shape)
        index = self.pack(spec, key, places, _NO_ENTRY)
        flat, known = value.flatten().clone(), index != _NO_ENTRY
        flat[index[known]] = packed.to(value)[known]
        return flat.reshape(value.shape)


def _merged(row: Any, new: Tensor) -> Any:
    if isinstance(row, Tensor):
        return row if torch.equal(row, new.to(row)) else new.to(row)
    return new.tolist() if row is None else type(row)(_merged_list(row, new))


def _merged_list(row: Sequence[Any], new: Tensor) -> list[Any]:
    """The entries of a list, and of ``new`` where these differ; an int stays an int."""
    old = torch.tensor([float("nan") if entry is None else entry for entry in row], dtype=torch.float64)
    differs = old.to(new.dtype) != new if new.is_floating_point() else (old != 0) != new
    return [
        (type(entry)(changed) if isinstance(entry, int) else float(changed)) if is_other else entry
        for entry, changed, is_other in zip(row, new.tolist(), differs.tolist(), strict=True)
    ]


def _is_flat(value: Any) -> bool:
    """Numbers, and not rows of numbers."""
    return any(isinstance(entry, int | float) for entry in value)


def _lacks_token_axis(spec: FieldSpec, value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == len(spec.dims) or (value.dim() == len(spec.dims) + 1 and value.shape[1] == 1)
    return isinstance(value, list | tuple) and _is_flat(value)


def _ints(values: Any) -> list[int]:
    plain = values.tolist() if hasattr(values, "tolist") else values
    return [int(value) for value in plain]
