"""RolloutBatch: a frozen, validated batch of rollouts, and its life cycle.

build  ->  extend / corrected / weighted  ->  split / select / to  ->  bind  ->  losses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, SupportsIndex, TypeVar, dataclass_transform, overload

import torch
from jaxtyping import Bool, Float
from pydantic import AfterValidator
from torch import Tensor

from rollout_contract.aggregation import Aggregation, Mode, denominator_violations, step_weights
from rollout_contract.configuration import current_settings
from rollout_contract.errors import Violation, raise_violations, violation_error
from rollout_contract.layout import Integers, Layout
from rollout_contract.roles import FieldInput, Fixed, Metadata, PerSample, Role, unbound
from rollout_contract.sampling import Sampling, sampling_violations
from rollout_contract.schema import combine, report
from rollout_contract.schema.build import build
from rollout_contract.schema.extension import extension_violations, with_sampling
from rollout_contract.schema.intake import is_absent
from rollout_contract.schema.plan import Plan, compile_plan
from rollout_contract.schema.state import State, broken_seals

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from rollout_contract.corrections import Correction

BatchT = TypeVar("BatchT", bound="RolloutBatch")


class _Field:
    """The attribute of a schema's field. A data descriptor, so that no instance attribute can hide it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: RolloutBatch | None, owner: type[RolloutBatch]) -> Any:
        if instance is None:
            return self
        values = instance._state.values
        if self.name not in values:
            raise violation_error(owner.__name__, _unbound_violation(owner, self.name))
        return values[self.name]

    def __set__(self, instance: RolloutBatch, value: Any) -> None:
        _refuse_assignment(instance, self.name)

    def __delete__(self, instance: RolloutBatch) -> None:
        _refuse_assignment(instance, self.name)


def _refuse_assignment(batch: RolloutBatch, name: str) -> None:
    hint = "make a new batch: extend() adds fields, bind() sets those of the forward pass"
    frozen = Violation(name, "frozen", "a batch that nobody changes after it was validated", "an assignment", hint)
    raise violation_error(type(batch).__name__, frozen)


_SOURCES = {"loss_weights": "weighted()", "correction_weights": "corrected()"}


def _unbound_violation(schema: type[RolloutBatch], name: str) -> Violation:
    source = _SOURCES.get(name, f"bind({name}=...)" if schema.__plan__[name].is_tensor else f"{name}= at the build")
    hint = f"call batch.{source}" if source.endswith(")") else f"pass {source}"
    if name == "loss_weights":
        hint = 'call batch.weighted("token-mean") (or another aggregation) on the whole step, before any split'
    return Violation(name, "missing", "a value", "nothing: the field is not bound", hint)


@dataclass_transform(kw_only_default=True)
class _Schema:
    """Makes type checkers treat subclasses as keyword-only dataclasses, including RolloutBatch itself."""

    __slots__ = ("_state",)

    _state: State


class RolloutBatch(_Schema):
    """A batch of responses that losses may trust. Subclass it, or combine the ready schemas, to declare fields.

    Fields:
        response_lengths: number of response tokens of each sample; host integers.
        loss_mask: [tokens] bool, True where the loss trains; {0, 1} of any dtype is accepted and converted.
        prompt_lengths: number of prompt tokens of each sample; needed for fields over whole sequences.
        group_ids: the group (prompt) of each sample.
        row_ids: identity of each sample, unique in the process by default; batches over different rows do not combine.
            -1 marks a sample that only fills the batch up.
        sampling: how each kind of log-prob was made, by field name; different ones in one batch are refused.
        loss_weights: [tokens], the aggregation as one fixed weight per token; set by :meth:`weighted`.
        correction_weights: [tokens], importance weights; set by :meth:`corrected`.

    Every per-token field accepts one packed tensor, or one row per sample (tensors or lists of numbers).

    Raises:
        ContractError: a subclass that names the broken rule when all violations are of one kind; all are reported.
    """

    __plan__: ClassVar[Plan]

    response_lengths: PerSample[int]
    loss_mask: Fixed[Bool[Tensor, "tokens"]]
    prompt_lengths: PerSample[int] = unbound()
    group_ids: PerSample[int] = unbound()
    row_ids: PerSample[int] = unbound()
    sampling: Metadata[Annotated[Mapping[str, Sampling], AfterValidator(MappingProxyType)]] = unbound()
    aggregation: Metadata[Aggregation] = unbound()
    loss_weights: Fixed[Float[Tensor, "tokens"]] = unbound()
    correction_weights: Fixed[Float[Tensor, "tokens"]] = unbound()

    if not TYPE_CHECKING:
        # Type checkers see the constructor that dataclass_transform makes from the fields.

        def __init__(self, **fields: Any) -> None:
            if hasattr(self, "_state"):
                _refuse_assignment(self, "__init__")
            _attach(self, build(type(self).__name__, self.__plan__, fields))

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            _install_plan(cls, RolloutBatch)

        # If they saw these two, they would take every name to be assignable.

        def __setattr__(self, name: str, value: Any) -> None:
            _refuse_assignment(self, name)

        def __delattr__(self, name: str) -> None:
            _refuse_assignment(self, name)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Lengths, groups and every index map of this batch."""
        return self._state.layout

    @property
    def device(self) -> torch.device:
        """Where every field lies that is not tagged AnyDevice."""
        return self._state.device

    @property
    def is_part(self) -> bool:
        """Whether this batch was cut out of a larger one."""
        return self._state.is_part

    @property
    def repairs(self) -> dict[str, int]:
        """What the build did to the input, with counts."""
        return report.counts(self._state.repairs)

    def has(self, name: str) -> bool:
        """Whether the field exists and is bound."""
        return name in self._state.values

    def __len__(self) -> int:
        return self.layout.num_samples

    def __repr__(self) -> str:
        return report.batch_repr(type(self).__name__, self.__plan__, self._state)

    def summary(self) -> report.Summary:
        """Counts, and the range of every field over the trained tokens. Synchronises with the device."""
        return report.summarise(type(self).__name__, self.__plan__, self._state)

    def verify(self) -> None:
        """Check that no fixed field was edited or made live since it was validated.

        Every loss calls this. It looks at host data alone.

        Raises:
            LiveGraphError, MutatedError: with the name of the field.
        """
        raise_violations(type(self).__name__, broken_seals(self._state))

    def _verify(self) -> None:
        if current_settings().level != "off":
            self.verify()

    def allclose(self: BatchT, other: BatchT, *, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether both have the same schema, rows and (to rounding; NaN equals NaN) values."""
        return type(self) is type(other) and combine.allclose(self._state, other._state, rtol, atol)

    # -- life cycle ------------------------------------------------------------------------------------------------

    def extend(self, schema: type[BatchT], **fields: Any) -> BatchT:
        """The same rows under a wider schema, with the fields that it adds. Only the new fields are checked."""
        self._verify()
        names = (type(self).__name__, schema.__name__)
        raise_violations(
            schema.__name__, extension_violations(self.__plan__, self._state, schema.__plan__, names, fields)
        )
        return self._built(schema, fields)

    def _built(self, schema: type[BatchT], fields: Mapping[str, Any]) -> BatchT:
        given = with_sampling(self._state, fields)
        return _make(schema, build(schema.__name__, schema.__plan__, given, self._state))

    def bind(self: BatchT, **fields: FieldInput | Mapping[str, Sampling]) -> BatchT:
        """The batch with the outputs of this forward pass, such as ``log_probs``, in its unbound fields."""
        self._verify()
        late = [n for n, s in self.__plan__.items() if s.is_tensor and not s.required and n not in _SOURCES]
        wrong = [name for name in fields if name not in (*late, "sampling")]
        expected = f"a field that is bound after the build: {', '.join(late) or 'this schema has none'}"
        raise_violations(type(self).__name__, [Violation(name, "unknown", expected, name) for name in wrong])
        nothing = [name for name, value in fields.items() if is_absent(value, self.layout)]
        hint = "leave it out where there is nothing to bind"
        raise_violations(type(self).__name__, [Violation(name, "missing", "a value", "None", hint) for name in nothing])
        return self._built(type(self), fields)

    def corrected(
        self: BatchT, correction: Correction | Callable[[BatchT], Correction], *, keep_denominators: bool = False
    ) -> BatchT:
        """The batch with a correction's weights and its narrowed mask, for every loss that follows.

        Args:
            correction: made from this batch; or the rule that makes it, such as ``Truncate(high=2.0)``.
            keep_denominators: rejected tokens still count in the weights of the loss, which the batch must have: a
                step of which much is rejected then makes a smaller update. So in miles, slime, OpenRLHF and AReaL. By
                default they leave the denominators, as in verl and SkyRL.

        Raises:
            RowsError: the correction was made from other rows.
            DeviceError: it was made on another device.
            CorrectionError: the batch has correction weights already, or is a part of a step that has its weights, or
                has no weights to keep.
        """
        self._verify()
        made = correction(self) if callable(correction) else correction
        state = combine.correct(type(self).__name__, self.__plan__, self._state, made, keep_denominators)
        return _make(type(self), state)

    def weighted(
        self: BatchT,
        aggregation: Aggregation | Mode,
        *,
        group: ProcessGroup | None = None,
        denominator: Tensor | float | None = None,
        scale: float = 1.0,
    ) -> BatchT:
        """The batch with one fixed weight per token, computed from the counts of the whole step.

        Call it on the step, before any split: then loss and gradient do not depend on how the step is split.

        Args:
            aggregation: how token losses become one number.
            group: data-parallel ranks that hold the other parts of the step; counts are summed over them.
            denominator: the count of the whole step, where a trainer has it: trained tokens for ``token-mean``, samples
                for the means over samples and ``constant``. Then this batch may be a part of the step. Above 0; a 0-dim
                tensor stays on its device.
            scale: multiplies every weight, for example the number of ranks when gradients are averaged over them.
        """
        self._verify()
        spec = aggregation if isinstance(aggregation, Aggregation) else Aggregation(mode=aggregation)
        if self.is_part and denominator is None:
            hint = "call weighted() on the step, then split it; or give the step's denominator"
            late = Violation("loss_weights", "rows", "the whole step", "a part of one, with too small counts", hint)
            raise violation_error(type(self).__name__, late)
        raise_violations(type(self).__name__, denominator_violations(spec, group, denominator))
        is_local = group is None and denominator is None
        if not is_local or scale != 1.0:
            spec = spec.model_copy(update={"is_local": is_local, "scale": spec.scale * scale})
        mask: Tensor = self._state.values["loss_mask"]
        weights = step_weights(self.layout, mask, spec, group, denominator, self._state.values["row_ids"])
        kept = {n: v for n, v in self._state.values.items() if n not in ("loss_weights", "aggregation")}
        state = combine.replace(self.__plan__, self._state, kept | {"loss_weights": weights, "aggregation": spec})
        return _make(type(self), state)

    # -- cutting and joining ---------------------------------------------------------------------------------------

    @overload
    def split(self: BatchT, *, samples: int) -> list[BatchT]: ...
    @overload
    def split(self: BatchT, *, max_tokens: int) -> list[BatchT]: ...
    def split(self: BatchT, *, samples: int | None = None, max_tokens: int | None = None) -> list[BatchT]:
        """Micro-batches of consecutive samples, without copying: at most ``samples`` of them, or ``max_tokens`` tokens.

        Tokens are those of prompts and responses where prompt lengths are known, else of responses. A batch without
        samples gives one part without samples, so that every rank has something to run backward through.
        """
        self._verify()
        cuts = combine.cuts(type(self).__name__, self.layout, samples, max_tokens)
        return [self._rows(range(start, end)) for start, end in cuts]

    def select(self: BatchT, rows: SupportsIndex | Integers) -> BatchT:
        """The samples of these indices (or of a bool mask over samples), in this order; every field is cut alike."""
        self._verify()
        return self._rows(combine.row_indices(type(self).__name__, rows, len(self)))

    def _rows(self: BatchT, rows: Sequence[int]) -> BatchT:
        return _make(type(self), combine.select(self.__plan__, self._state, rows))

    def __getitem__(self: BatchT, rows: SupportsIndex | slice | Integers) -> BatchT:
        if isinstance(rows, slice):
            return self.select(range(len(self))[rows])
        return self.select([rows] if isinstance(rows, int) else rows)

    def __iter__(self: BatchT) -> Iterator[BatchT]:
        """One-sample batches, in order."""
        self._verify()
        return (self._rows(range(row, row + 1)) for row in range(len(self)))

    @classmethod
    def concat(cls: type[BatchT], batches: Iterable[BatchT]) -> BatchT:
        """The samples of all batches. A field that some of them lack, or metadata that differs, is an error."""
        batches = list(batches)
        others = [(i, type(batch).__name__) for i, batch in enumerate(batches) if not isinstance(batch, cls)]
        hint = f"extend({cls.__name__}) adds what is lacking"
        raise_violations(
            cls.__name__,
            [Violation(f"batch {i}", "schema", f"a {cls.__name__}", f"a {name}", hint) for i, name in others],
        )
        for batch in batches:
            batch._verify()
        return _make(cls, combine.concat(cls.__name__, cls.__plan__, [batch._state for batch in batches]))

    def merge(self, other: RolloutBatch, schema: type[BatchT]) -> BatchT:
        """The fields of two batches over the same rows under one schema.

        Raises:
            RowsError: the row ids differ, or stand in another order.
        """
        self._verify()
        other._verify()
        fields = combine.merged_fields(schema.__name__, self._state, other._state)
        return self.extend(schema, **fields)

    def pad_to(self: BatchT, num_samples: int) -> BatchT:
        """The batch with empty samples (no tokens, row id -1) at its end, so that ranks hold equally many."""
        self._verify()
        return _make(type(self), combine.pad_to(type(self).__name__, self.__plan__, self._state, num_samples))

    def to(self: BatchT, device: torch.device | str) -> BatchT:
        """The batch with every field, also those tagged AnyDevice, on ``device``; the copies are finished on return."""
        self._verify()
        return _make(type(self), combine.to_device(self.__plan__, self._state, torch.device(device)))

    # -- no back door ----------------------------------------------------------------------------------------------

    def __copy__(self: BatchT) -> BatchT:
        self._verify()
        return self

    def __deepcopy__(self: BatchT, memo: dict[int, Any]) -> BatchT:
        rebuild, arguments = self.__reduce__()
        copied: BatchT = rebuild(*arguments)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        self._verify()
        live = [spec.name for spec in self.__plan__.values() if spec.role is Role.TRAINABLE and self.has(spec.name)]
        hint = "copy or send the batch before bind(): a graph cannot travel"
        bound = [Violation(name, "live graph", "an unbound field", "a bound one", hint) for name in live]
        raise_violations(type(self).__name__, bound)
        return _rebuild, (type(self), combine.compact(self._state.values), dict(self.repairs), self.is_part)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def _rebuild(schema: type[BatchT], values: Mapping[str, Any], repairs: Mapping[str, int], is_part: bool) -> BatchT:
    """What unpickling and copying call: a build like any other, with all its checks."""
    state = build(schema.__name__, schema.__plan__, values)
    return _make(schema, State(state.values, state.layout, state.device, state.versions, repairs, is_part))


def _attach(batch: RolloutBatch, state: State) -> None:
    if "__plan__" not in vars(type(batch)):
        hint = "let every __init_subclass__ in front of the schema call super().__init_subclass__()"
        raw = Violation("__plan__", "schema", "a schema that was compiled when its class was made", "none", hint)
        raise violation_error(type(batch).__name__, raw)
    wrong = sampling_violations(type(batch).__plan__, state.values)
    raise_violations(type(batch).__name__, wrong if current_settings().level != "off" else [])
    object.__setattr__(batch, "_state", state)


def _make(schema: type[BatchT], state: State) -> BatchT:
    batch = schema.__new__(schema)
    _attach(batch, state)
    return batch


def _install_plan(schema: type[RolloutBatch], root: type | None) -> None:
    plan = compile_plan(schema, root)
    schema.__plan__ = plan
    for name in plan:
        setattr(schema, name, _Field(name))


if not TYPE_CHECKING:
    _install_plan(RolloutBatch, None)
