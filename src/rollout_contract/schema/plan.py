"""The plan of a schema: its annotations, compiled once, when the class is made.

A wrong schema therefore fails at import and not at step 400.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from torch import Tensor

from rollout_contract.errors import Violation, raise_violations, violation_error
from rollout_contract.roles import UNBOUND, AllowNaN, AnyDevice, Role, Unbound, Upcast

LEVELS = ("tokens", "batch", "groups", "sequence")
"""The first dimension of a field: response tokens, samples, groups, or all tokens of prompts and responses."""

if TYPE_CHECKING:
    Adapter: TypeAlias = TypeAdapter[Any]
else:
    # A class that beartype knows how to check.
    Adapter = TypeAdapter

Family: TypeAlias = Literal["float", "int", "bool"]

HALF_PRECISION = ("float16", "bfloat16")
# Plain ``Float`` means a dtype in which a difference of log-probs is still a number worth exponentiating.
_FULL_PRECISION = ("float32", "float64")

# Annotations know these, but no tensor can be made of them.
_SUB_BYTE = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4))


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a schema."""

    name: str
    role: Role
    required: bool
    default: Any = UNBOUND
    dims: tuple[str | int, ...] = ()
    family: Family = "float"
    dtypes: tuple[str, ...] = ()
    any_device: bool = False
    upcast: bool = False
    allow_nan: bool = False
    adapter: Adapter | None = None

    @property
    def is_tensor(self) -> bool:
        return self.role in (Role.FIXED, Role.TRAINABLE)

    @property
    def usual_dtype(self) -> str:
        """What numbers become that come without a dtype, or have to be converted."""
        usual = {"float": "float32", "int": "int64", "bool": "bool"}[self.family]
        return usual if usual in self.dtypes else self.dtypes[0]

    @property
    def axis(self) -> str:
        """What the first dimension counts; ``batch`` for per-sample host values, empty for other metadata."""
        if self.role is Role.PER_SAMPLE:
            return "batch"
        return str(self.dims[0]) if self.dims else ""

    @property
    def holds_log_probs(self) -> bool:
        """Log-probs are known by their name, which is the field's standard one: it ends in ``log_probs``."""
        return self.is_tensor and self.name.endswith("log_probs")

    @property
    def may_miss_values(self) -> bool:
        """Whether None or NaN may be a score that an engine could not give (see :mod:`missing`).

        A live log-prob that is NaN is a fault of the forward pass; it is never papered over.
        """
        return self.role is Role.FIXED and self.holds_log_probs and self.axis == "tokens"

    def signature(self) -> tuple[Any, ...]:
        """What a subclass may not change: it is what losses rely on."""
        return self.role, self.dims, self.family


Plan: TypeAlias = Mapping[str, FieldSpec]

# What Python puts into the namespace of a class by itself, and how a class looks when it is printed.
_OF_EVERY_CLASS = frozenset(vars(type("_", (), {}))) | {"__annotations__", "__annotate__", "__repr__"}


def compile_plan(schema: type, root: type | None) -> Plan:
    """Compile the annotations of ``schema`` itself and join them with the plans of its bases.

    ``root`` is the class that all schemas share, None while that class itself is being made.
    """
    bases = [] if root is None else [base for base in reversed(schema.__mro__[1:]) if issubclass(base, root)]
    plan: dict[str, FieldSpec] = {}
    for base in bases:
        plan |= base.__dict__["__plan__"]
    violations: list[Violation] = []
    for name, hint in _own_annotations(schema).items():
        if name.startswith("_") or hint is ClassVar or get_origin(hint) is ClassVar:
            continue
        spec = _compile_field(schema, name, hint)
        if isinstance(spec, Violation):
            violations.append(spec)
        else:
            plan[name] = spec
    violations += _conflicts(bases, plan)
    if root is not None:
        violations += _overridden(schema, plan, root)
    raise_violations(schema.__name__, violations)
    return plan


def _own_annotations(schema: type) -> dict[str, Any]:
    """The class's own annotations; those that are strings are evaluated where the class was written."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("rollout_contract.schema."):
        frame = frame.f_back
    try:
        return inspect.get_annotations(schema, locals=dict(frame.f_locals), eval_str=True)
    except NameError as error:
        hint = "import the name at run time (not under TYPE_CHECKING) where the schema is defined"
        wrong = Violation(schema.__name__, "schema", "annotations that can be evaluated", str(error), hint)
        raise violation_error(schema.__name__, wrong) from error


def _compile_field(schema: type, name: str, hint: Any) -> FieldSpec | Violation:
    parts = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    roles = [part for part in parts if isinstance(part, Role)]
    if len(roles) != 1:
        tags = "Fixed[...], Trainable[...], PerSample[...] or Metadata[...]"
        found = f"{len(roles)} tags on {_show(hint)}"
        return Violation(name, "schema", f"exactly one tag: {tags}", found, "say what a loss may do with the field")
    role, default = roles[0], schema.__dict__.get(name, ...)
    if role is not Role.METADATA and default is not ... and not isinstance(default, Unbound):
        reason = "only metadata of the whole batch has another default"
        return Violation(name, "schema", "no default, or unbound()", repr(default), reason)
    if role in (Role.METADATA, Role.PER_SAMPLE):
        return _compile_host(name, role, hint, default)
    return _compile_tensor(name, role, default is ..., parts)


def _compile_host(name: str, role: Role, hint: Any, default: Any) -> FieldSpec | Violation:
    """A host value, which pydantic validates."""
    try:
        adapter = TypeAdapter(hint)
        if default is ... or isinstance(default, Unbound):
            return FieldSpec(name, role, default is ..., adapter=adapter)
        adapter.validate_python(default)
    except PydanticSchemaGenerationError as error:
        found = str(error).splitlines()[0]
        return Violation(name, "schema", "an annotation that pydantic can validate", found, "Any takes whatever it is")
    except ValidationError as error:
        expected, reason = "a default that its annotation allows", str(error.errors()[0]["msg"])
        return Violation(name, "schema", expected, repr(default), reason)
    return FieldSpec(name, role, False, default, adapter=adapter)


def _compile_tensor(name: str, role: Role, required: bool, parts: tuple[Any, ...]) -> FieldSpec | Violation:
    array = parts[0]
    dtypes, dims = getattr(array, "dtypes", None), getattr(array, "dims", None)
    if not isinstance(dtypes, tuple) or not dims or getattr(array, "array_type", None) is not Tensor:
        expected = 'a jaxtyping annotation with dimensions, such as Float[Tensor, "tokens"]'
        return Violation(name, "schema", expected, _show(array))
    sizes = tuple(array.dim_str.split())
    if sizes[0] not in LEVELS:
        return Violation(name, "schema", f"a first dimension out of {', '.join(LEVELS)}", repr(array.dim_str))
    if not all((size.isidentifier() and size[0] != "_") or size.isdigit() for size in sizes):
        return Violation(name, "schema", "dimensions that are names or numbers", repr(array.dim_str))
    if set(sizes[1:]) & set(LEVELS):
        hint = "split, select and concat cut the first dimension alone; give the others names of your own"
        return Violation(name, "schema", f"{', '.join(LEVELS)} as first dimension only", repr(array.dim_str), hint)
    family = _family(dtypes)
    if family is None:
        return Violation(name, "schema", "Float, Int or Bool (or an exact dtype of these)", _show(array))
    if role is Role.TRAINABLE and family != "float":
        hint = "only floating-point numbers have a gradient; tag it Fixed"
        return Violation(name, "schema", "Trainable[Float[...]]", _show(array), hint)
    if family == "float" and set(_FULL_PRECISION) <= set(dtypes):
        dtypes = _FULL_PRECISION
    return FieldSpec(
        name,
        role,
        required,
        dims=tuple(int(size) if size.isdigit() else size for size in sizes),
        family=family,
        dtypes=tuple(dtype for dtype in dtypes if dtype not in _SUB_BYTE),
        any_device=AnyDevice in parts,
        upcast=Upcast in parts,
        allow_nan=AllowNaN in parts,
    )


def _family(dtypes: tuple[str, ...]) -> Family | None:
    families: dict[Family, tuple[str, ...]] = {"float": ("float", "bfloat"), "int": ("int", "uint"), "bool": ("bool",)}
    for family, prefixes in families.items():
        if all(dtype.startswith(prefixes) for dtype in dtypes):
            return family
    return None


def _conflicts(bases: Sequence[type], plan: Plan) -> Iterator[Violation]:
    """A field keeps its role and shape in every subclass, and means the same in every base of a composed schema."""
    origins: dict[str, Violation] = {}
    for base in bases:
        inherited: Plan = base.__dict__["__plan__"]
        for name, spec in inherited.items():
            if name not in origins and plan[name].signature() != spec.signature():
                expected = f"as in {base.__name__}: {describe(spec)}"
                hint = "give the new field its own name: the losses of the base class rely on this one"
                origins[name] = Violation(name, "schema", expected, describe(plan[name]), hint)
    yield from origins.values()


def _overridden(schema: type, plan: Plan, root: type) -> Iterator[Violation]:
    """Nothing may stand between a field's declaration and the loss that reads it, nor replace a check of the batch."""
    methods = {name for name in vars(root) if name not in root.__dict__["__plan__"]} - _OF_EVERY_CLASS
    guarded = set(plan) | methods | {"__new__", "__getattribute__", "__getattr__"}
    for parent in schema.__mro__[: schema.__mro__.index(root)]:
        if parent is not schema and issubclass(parent, root):
            continue
        for name in sorted((set(parent.__dict__) - set(inspect.get_annotations(parent))) & guarded):
            hint = "a schema declares fields and may add methods; derive other values in a function"
            expected = f"{parent.__name__} leaves {name} as RolloutBatch and the schemas made it"
            yield Violation(name, "schema", expected, "an override", hint)
    for name in sorted(set(plan) & methods):
        yield Violation(name, "schema", "a name that no method of a batch has", f"the method {name}()")


def describe(spec: FieldSpec) -> str:
    """For example ``fixed float[tokens]``."""
    if not spec.is_tensor:
        return "one value per sample" if spec.role is Role.PER_SAMPLE else spec.role.value
    return f"{spec.role.value} {spec.family}[{' '.join(map(str, spec.dims))}]"


def _show(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or repr(annotation)
