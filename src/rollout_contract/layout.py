"""Every index map of a batch of responses with different lengths.

The canonical form is ragged and packed: the response tokens of all samples, end to end, without padding. Entry ``t`` of
a packed vector belongs to response token ``t`` itself, never to the position that predicts it. Nothing outside this
file does index arithmetic on lengths and offsets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, SupportsIndex, TypeAlias, final

import torch
from torch import Tensor

from rollout_contract.errors import Violation, counted, raise_violations, violation_error
from rollout_contract.inference import ordinary_tensors
from rollout_contract.kernels.segments import segment_max, segment_mean, segment_min, segment_sum

Integers: TypeAlias = Iterable[SupportsIndex] | Tensor
"""Host integers: a list, a tensor, an array."""

Side = Literal["left", "right"]
Frame = Literal["response", "sequence"]


@final
class Layout:
    """The shape of a ragged batch, on the host.

    Args:
        response_lengths: number of response tokens of each sample.
        prompt_lengths: number of prompt tokens of each sample; needed only for whole-sequence fields.
        group_ids: the group (prompt) of each sample; every sample its own group when absent.

    Two layouts are equal when these are equal. Index tensors are made once per device.
    """

    __slots__ = ("_cache", "group_ids", "offsets", "prompt_lengths", "response_lengths")

    response_lengths: tuple[int, ...]
    prompt_lengths: tuple[int, ...] | None
    group_ids: tuple[int, ...] | None
    offsets: tuple[int, ...]
    _cache: dict[tuple[str, torch.device], Tensor]

    def __init__(
        self,
        response_lengths: Integers,
        *,
        prompt_lengths: Integers | None = None,
        group_ids: Integers | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "response_lengths", _integers("response_lengths", response_lengths))
        put(self, "prompt_lengths", None if prompt_lengths is None else _integers("prompt_lengths", prompt_lengths))
        put(self, "group_ids", None if group_ids is None else _integers("group_ids", group_ids))
        put(self, "offsets", tuple(accumulate(self.response_lengths, initial=0)))
        put(self, "_cache", {})
        raise_violations("Layout", self._violations())

    def _violations(self) -> Iterator[Violation]:
        for name, lengths in (("response_lengths", self.response_lengths), ("prompt_lengths", self.prompt_lengths)):
            for row, length in enumerate(lengths or ()):
                if length < 0:
                    yield Violation(name, "length", "a length of 0 or more", str(length), row=row)
        for name, values in (("prompt_lengths", self.prompt_lengths), ("group_ids", self.group_ids)):
            if values is not None and len(values) != self.num_samples:
                expected = f"one entry for each of the {self.num_samples} samples"
                yield Violation(name, "length", expected, counted(len(values), "entry"))

    def __setattr__(self, name: str, value: Any) -> None:
        raise violation_error("Layout", Violation(name, "frozen", "a layout is frozen", "an assignment"))

    def __delattr__(self, name: str) -> None:
        raise violation_error("Layout", Violation(name, "frozen", "a layout is frozen", "a deletion"))

    def _key(self) -> tuple[Any, ...]:
        return self.response_lengths, self.prompt_lengths, self.group_ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_layout, self._key()

    def __repr__(self) -> str:
        return f"Layout({self.num_samples} samples, {self.num_tokens} tokens, longest {self.max_length})"

    # -- sizes, all on the host ------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        return len(self.response_lengths)

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]

    @property
    def max_length(self) -> int:
        return max(self.response_lengths, default=0)

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Prompt plus response length of each sample."""
        if self.prompt_lengths is None:
            hint = "pass prompt_lengths=[...] when the batch is built"
            missing = Violation("prompt_lengths", "missing", "prompt lengths, for a whole-sequence field", "none", hint)
            raise violation_error("Layout", missing)
        return tuple(p + r for p, r in zip(self.prompt_lengths, self.response_lengths, strict=True))

    @property
    def groups(self) -> tuple[int, ...]:
        """The distinct group ids in order of first appearance; field dim ``groups`` has one entry for each."""
        if self.group_ids is None:
            return tuple(range(self.num_samples))
        return tuple(dict.fromkeys(self.group_ids))

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    # -- index tensors, made once per device -----------------------------------------------------------------------

    def _index(self, key: str, device: torch.device | str, make: Callable[[], Tensor]) -> Tensor:
        place = (key, torch.device(device))
        if place not in self._cache:
            with ordinary_tensors():
                self._cache[place] = _sent(make(), place[1])
        return self._cache[place]

    def sample_ids(self, device: torch.device | str = "cpu") -> Tensor:
        """[tokens] int64: the sample that each response token belongs to."""
        samples = torch.arange(self.num_samples)
        return self._index(
            "sample_ids",
            device,
            lambda: samples.repeat_interleave(self.lengths(), output_size=self.num_tokens),
        )

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """[tokens] int64: the position of each response token inside its response."""
        return self._index("positions", device, lambda: torch.arange(self.num_tokens) - self._at(self.offsets[:-1]))

    def lengths(self, device: torch.device | str = "cpu") -> Tensor:
        """[batch] int64: the response lengths."""
        return self._index("lengths", device, lambda: _tensor(self.response_lengths))

    def group_index(self, device: torch.device | str = "cpu") -> Tensor:
        """[batch] int64: the position of each sample's group in :attr:`groups`."""
        return self._index("group_index", device, self._make_group_index)

    def _make_group_index(self) -> Tensor:
        places = {group: place for place, group in enumerate(self.groups)}
        return _tensor([places[group] for group in self.group_ids or self.groups])

    def _at(self, per_sample: Sequence[int]) -> Tensor:
        """[tokens]: a number of each sample, at each of its response tokens."""
        return _tensor(per_sample)[self.sample_ids()]

    # -- per sample <-> per token ----------------------------------------------------------------------------------

    def expand(self, per_sample: Tensor) -> Tensor:
        """[batch, ...] -> [tokens, ...]: repeat each sample's entry for each of its response tokens."""
        self._require_rows("per_sample", per_sample, self.num_samples, "samples")
        return per_sample.index_select(0, self.sample_ids(per_sample.device))

    def expand_groups(self, per_group: Tensor) -> Tensor:
        """[groups, ...] -> [batch, ...]: repeat each group's entry for each of its samples."""
        self._require_rows("per_group", per_group, self.num_groups, "groups")
        return per_group.index_select(0, self.group_index(per_group.device))

    def sum(self, per_token: Tensor) -> Tensor:
        """[tokens] -> [batch]: the sum over each response."""
        self._require_rows("per_token", per_token, self.num_tokens, "response tokens")
        return segment_sum(per_token, self.sample_ids(per_token.device), self.num_samples)

    def mean(self, per_token: Tensor, mask: Tensor) -> Tensor:
        """[tokens] -> [batch]: the mean over the masked-in tokens of each response; 0 for none."""
        self._require_rows("per_token", per_token, self.num_tokens, "response tokens")
        return segment_mean(per_token, mask, self.sample_ids(per_token.device), self.num_samples)

    def max(self, per_token: Tensor, empty: float = 0.0) -> Tensor:
        """[tokens] -> [batch]: the largest entry of each response; ``empty`` for a response without tokens."""
        self._require_rows("per_token", per_token, self.num_tokens, "response tokens")
        return segment_max(per_token, self.sample_ids(per_token.device), self.num_samples, empty)

    def min(self, per_token: Tensor, empty: float = 0.0) -> Tensor:
        """[tokens] -> [batch]: the smallest entry of each response; ``empty`` for a response without tokens."""
        self._require_rows("per_token", per_token, self.num_tokens, "response tokens")
        return segment_min(per_token, self.sample_ids(per_token.device), self.num_samples, empty)

    # -- packed <-> lists, padded, nested --------------------------------------------------------------------------

    def split(self, packed: Tensor) -> list[Tensor]:
        """[tokens, ...] -> one view per sample."""
        self._require_rows("packed", packed, self.num_tokens, "response tokens")
        return list(packed.split(list(self.response_lengths))) if self.num_samples else []

    def cat(self, rows: Sequence[Tensor]) -> Tensor:
        """One tensor per sample -> [tokens, ...]."""
        self._require_lengths("Layout.cat", rows)
        return torch.cat(list(rows)) if rows else torch.zeros(0)

    def _require_lengths(self, subject: str, rows: Sequence[Tensor]) -> None:
        if len(rows) != self.num_samples:
            expected = counted(self.num_samples, "row")
            raise violation_error(subject, Violation("rows", "length", expected, counted(len(rows), "row")))
        wrong = [
            Violation("rows", "length", counted(expected, "response token"), _size(row), row=i)
            for i, (row, expected) in enumerate(zip(rows, self.response_lengths, strict=True))
            if row.dim() == 0 or row.shape[0] != expected
        ]
        raise_violations(subject, wrong)

    def pad(self, packed: Tensor, value: float = 0.0, *, side: Side = "right", width: int | None = None) -> Tensor:
        """[tokens, ...] -> [batch, width, ...]; ``side`` says where the padding goes.

        Responses that end at the last column (right-aligned) have their padding on the left.
        """
        self._require_rows("packed", packed, self.num_tokens, "response tokens")
        width = self.max_length if width is None else width
        flat = packed.new_full((self.num_samples * width, *packed.shape[1:]), value)
        index = self._padded_index(width, side, self.response_lengths, packed.device)
        filled = flat.index_copy(0, index, packed)
        return filled.reshape(self.num_samples, width, *packed.shape[1:])

    def pack(self, padded: Tensor, *, side: Side = "right", frame: Frame = "response") -> Tensor:
        """[batch, width, ...] -> [tokens, ...], with one differentiable gather.

        ``frame="response"``: the rows hold responses. ``frame="sequence"``: they hold prompt and response end to end,
        token-aligned, and only the response is taken.
        """
        if padded.dim() < 2:
            found = f"a tensor of shape {list(padded.shape)}"
            raise violation_error("Layout.pack", Violation("padded", "shape", "[batch, width, ...]", found))
        self._require_rows("padded", padded, self.num_samples, "samples")
        if frame not in ("response", "sequence"):
            wrong = Violation("frame", "metadata", "'response' or 'sequence'", repr(frame))
            raise violation_error("Layout.pack", wrong)
        ends = self.response_lengths if frame == "response" else self.sequence_lengths
        index = self._padded_index(padded.shape[1], side, ends, padded.device)
        return padded.flatten(0, 1).index_select(0, index)

    def _padded_index(self, width: int, side: Side, ends: tuple[int, ...], device: torch.device) -> Tensor:
        """Flat positions of the response tokens in [batch, width] rows whose contents are ``ends`` long."""
        if side not in ("left", "right"):
            raise violation_error("Layout", Violation("side", "metadata", "'left' or 'right'", repr(side)))
        for row, end in enumerate(ends):
            if end > width:
                too_long = Violation("width", "length", f"at least {end} columns", f"{width} columns", row=row)
                raise violation_error("Layout", too_long)
        starts = [
            (row + 1) * width - length if side == "left" else row * width + end - length
            for row, (end, length) in enumerate(zip(ends, self.response_lengths, strict=True))
        ]
        frame = "response" if ends is self.response_lengths else "sequence"
        return self._index(f"padded {width} {side} {frame}", device, lambda: self._at(starts) + self.positions())

    def to_nested(self, packed: Tensor) -> Tensor:
        """[tokens, ...] -> a jagged ``torch.nested`` tensor that shares its values."""
        self._require_rows("packed", packed, self.num_tokens, "response tokens")
        offsets = self._index("offsets", packed.device, lambda: _tensor(self.offsets))
        return torch.nested.nested_tensor_from_jagged(packed, offsets)

    def from_nested(self, nested: Tensor) -> Tensor:
        """A jagged ``torch.nested`` tensor of responses -> [tokens, ...]; a copy only if it has holes."""
        rows = nested.unbind()
        self._require_lengths("Layout.from_nested", rows)
        packed = nested.values()
        return packed if packed.shape[0] == self.num_tokens else torch.cat(rows)

    # -- whole sequences -------------------------------------------------------------------------------------------

    @property
    def num_sequence_tokens(self) -> int:
        return sum(self.sequence_lengths)

    def _response_index(self, device: torch.device) -> Tensor:
        """[tokens]: where each response token lies in the whole sequences, end to end."""
        ends = accumulate(self.sequence_lengths)
        starts = [end - length for end, length in zip(ends, self.response_lengths, strict=True)]
        return self._index("response", device, lambda: self._at(starts) + self.positions())

    def response_from_sequence(self, sequence: Tensor) -> Tensor:
        """[sequence, ...] token-aligned (entry i belongs to token i) -> [tokens, ...]."""
        self._require_rows("sequence", sequence, self.num_sequence_tokens, "prompt and response tokens")
        return sequence.index_select(0, self._response_index(sequence.device))

    def response_from_predictions(self, sequence: Tensor) -> Tensor:
        """[sequence, ...] prediction-aligned (entry i predicts token i + 1) -> [tokens, ...] token-aligned.

        This is what turns a model's logits or per-position values into one entry per response token.
        """
        self._require_rows("sequence", sequence, self.num_sequence_tokens, "prompt and response tokens")
        self._require_prompts()
        return sequence.index_select(0, self._response_index(sequence.device) - 1)

    def predictions_from_response(self, packed: Tensor, value: float = 0.0) -> Tensor:
        """[tokens, ...] token-aligned -> [sequence, ...] prediction-aligned; ``value`` everywhere else."""
        self._require_rows("packed", packed, self.num_tokens, "response tokens")
        self._require_prompts()
        sequence = packed.new_full((self.num_sequence_tokens, *packed.shape[1:]), value)
        return sequence.index_copy(0, self._response_index(packed.device) - 1, packed)

    def sequence_from_response(self, packed: Tensor, value: float = 0.0) -> Tensor:
        """[tokens, ...] -> [sequence, ...] token-aligned; ``value`` on the prompts."""
        self._require_rows("packed", packed, self.num_tokens, "response tokens")
        sequence = packed.new_full((self.num_sequence_tokens, *packed.shape[1:]), value)
        return sequence.index_copy(0, self._response_index(packed.device), packed)

    def _require_prompts(self) -> None:
        rows = zip(self.prompt_lengths or (), self.response_lengths, strict=True)
        wrong = [
            Violation(
                "prompt_lengths",
                "length",
                "a prompt of at least one token, which predicts the first response token",
                "an empty prompt",
                "start every prompt with a beginning-of-sequence token",
                row=row,
            )
            for row, (prompt, response) in enumerate(rows)
            if response and not prompt
        ]
        raise_violations("Layout", wrong)

    # -- other batches ---------------------------------------------------------------------------------------------

    def select(self, rows: Iterable[int]) -> Layout:
        """The layout of these samples, in this order."""
        rows = tuple(rows)

        def pick(values: tuple[int, ...] | None) -> tuple[int, ...] | None:
            return None if values is None else tuple(values[row] for row in rows)

        lengths = tuple(self.response_lengths[row] for row in rows)
        return Layout(lengths, prompt_lengths=pick(self.prompt_lengths), group_ids=pick(self.group_ids))

    def _require_rows(self, name: str, tensor: Tensor, size: int, unit: str) -> None:
        if tensor.dim() == 0 or tensor.shape[0] != size:
            found = f"shape {list(tensor.shape)}"
            raise violation_error(
                "Layout", Violation(name, "shape", f"{size} entries, one for each of the {unit}", found)
            )


def _integers(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Host integers, from whatever counts as one; a tensor is read once."""
    plain = values.tolist() if isinstance(values, Tensor) else values
    try:
        return tuple(map(operator.index, plain))
    except TypeError as error:
        raise violation_error("Layout", Violation(name, "length", "integers", str(error))) from None


def _tensor(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)


def _size(row: Tensor) -> str:
    return counted(row.shape[0], "entry") if row.dim() else "a scalar"


def _sent(index: Tensor, device: torch.device) -> Tensor:
    """On ``device``. From pinned memory, else the host would wait until everything before the copy is computed."""
    if device.type != "cuda" or not torch.cuda.is_available() or type(index) is not Tensor:
        return index.to(device)
    return index.pin_memory().to(device, non_blocking=True)


def _make_layout(
    response_lengths: tuple[int, ...], prompt_lengths: tuple[int, ...] | None, group_ids: tuple[int, ...] | None
) -> Layout:
    return Layout(response_lengths, prompt_lengths=prompt_lengths, group_ids=group_ids)
