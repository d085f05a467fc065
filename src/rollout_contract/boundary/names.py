"""Under which keys, and in which arrangement, a trainer keeps the fields of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from rollout_contract.layout import Side

Alignment: TypeAlias = Literal["token", "prediction"]
"""What entry i of a row scores: token i itself, or token i + 1, which the position predicts."""

Form: TypeAlias = Literal["list", "padded", "packed"]
"""One row per sample in a list; a tensor [batch, width, ...]; all rows end to end: [tokens, ...] or [1, tokens, ...]"""


class Key(BaseModel):
    """Where a trainer keeps one field.

    Attributes:
        keys: its key. Several are multiplied, as masks are; those after the first may be absent.
        alignment: where it differs from that of the loss mask.
        per_row: a value without a token axis, [batch] or [batch, 1], holds for every token of its row.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[str, ...] = Field(min_length=1)
    alignment: Alignment | None = None
    per_row: bool = False

    def __init__(self, *keys: str, **options: Any) -> None:
        super().__init__(keys=options.pop("keys", keys), **options)

    @property
    def first(self) -> str:
        return self.keys[0]

    def __str__(self) -> str:
        return " x ".join(self.keys)


class Names(BaseModel):
    """How a trainer's dict is read: field -> key, and how the rows of its per-token values are arranged.

    A field that is not listed is looked up under its own name, unless another field has that key.

    Attributes:
        trainer: whose dict it is.
        fields: field -> key; None for a field that the dict does not have, whatever lies under its name.
        form: how rows are arranged. A list, a tensor with a batch axis and one without are told apart anyway; what has
            to be said is that a batch axis of 1 holds all rows end to end ("packed").
        padding: the side of a padded row that is padding. "left": responses end in the last column.
        alignment: of the loss mask, and of every field whose key does not say otherwise.
        lengths: key of the number of entries of each row.
        offsets: key of the cumulated lengths of packed rows (``cu_seqlens``), which begin with 0.
        totals: key of the number of tokens of prompt and response together, where ``lengths`` counts the response.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    trainer: str
    fields: Mapping[str, str | Key | None] = Field(default_factory=dict)
    form: Form = "padded"
    padding: Side = "right"
    alignment: Alignment = "token"
    lengths: str | None = None
    offsets: str | None = None
    totals: str | None = None

    def but(self, *, fields: Mapping[str, str | Key | None] | None = None, **changes: Any) -> Names:
        """The same names with some fields under other keys (None: not in the dict), or another arrangement."""
        merged = {**self.fields, **(fields or {})}
        return type(self).model_validate({**dict(self), **changes, "fields": merged})

    def key(self, field: str) -> Key | None:
        """Where ``field`` lies, or None if the dict does not have it."""
        if field in self._listed:
            return self._listed[field]
        return None if field in self._taken else Key(field)

    @cached_property
    def _listed(self) -> dict[str, Key | None]:
        return {field: Key(key) if isinstance(key, str) else key for field, key in self.fields.items()}

    @cached_property
    def _taken(self) -> set[str]:
        """Keys that mean something else than the field of that name."""
        return {part for key in self._listed.values() if key is not None for part in key.keys}

    def aligned(self, key: Key) -> Alignment:
        """The alignment of what lies under ``key``."""
        return key.alignment or self.alignment


PLAIN = Names(trainer="", lengths="response_lengths")
"""Every field under its own name."""
