"""Building a batch: every field is taken in, repaired where that loses nothing, and checked; all faults at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from rollout_contract.configuration import Settings, current_settings
from rollout_contract.errors import Violation, counted, raise_violations
from rollout_contract.inference import ordinary_tensors
from rollout_contract.layout import Layout
from rollout_contract.roles import UNBOUND, Role
from rollout_contract.schema.graph import cut_graph, pins_memory
from rollout_contract.schema.intake import is_absent, take_in
from rollout_contract.schema.missing import refuse_missing, resolve_missing
from rollout_contract.schema.plan import HALF_PRECISION, FieldSpec, Plan, describe
from rollout_contract.schema.shapes import shape_violations
from rollout_contract.schema.state import LAYOUT_FIELDS, State, seal
from rollout_contract.schema.values import can_look, value_violations

_next_row_id = itertools.count()


@dataclass(slots=True)
class Draft:
    """A batch under construction."""

    plan: Plan
    settings: Settings
    values: dict[str, Any]
    layout: Layout
    device: torch.device
    fresh: set[str]
    repairs: dict[str, Any]
    is_part: bool
    missing: dict[str, list[int]] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def specs(self, names: Iterable[str]) -> list[FieldSpec]:
        """Fields in the order of the plan."""
        wanted = set(names)
        return [spec for name, spec in self.plan.items() if name in wanted]

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self.values[name]
        return found


def build(subject: str, plan: Plan, given: Mapping[str, Any], base: State | None = None) -> State:
    """Check what is given against the plan and make the state of a batch.

    With ``base``, its values are kept as they are (they have been checked and are sealed); only what is given is new.
    """
    draft, tensors = _start(subject, plan, given, base)
    _take_tensors(draft, tensors)
    _check(draft)
    raise_violations(subject, draft.violations)
    return State(draft.values, draft.layout, draft.device, seal(plan, draft.values), draft.repairs, draft.is_part)


def _start(subject: str, plan: Plan, given: Mapping[str, Any], base: State | None) -> tuple[Draft, Mapping[str, Any]]:
    """Take in the host values, without which no tensor can be looked at; and the tensors that are to be taken in."""
    kept = {} if base is None else dict(base.values)
    unknown = [_unknown(name, plan) for name in given if name not in plan]
    given = _defaults(plan, kept) | {name: value for name, value in given.items() if name in plan}
    host, wrong = _host_values(plan, given)
    values = kept | host
    if "response_lengths" not in values and not wrong:
        wrong.append(_missing(plan["response_lengths"]))
    raise_violations(subject, [*unknown, *wrong] if wrong else ())
    if "row_ids" not in values:
        values["row_ids"] = tuple(itertools.islice(_next_row_id, len(values["response_lengths"])))
    is_new = base is None or any(name in host for name in LAYOUT_FIELDS)
    layout = _make_layout(subject, values) if base is None or is_new else base.layout
    raise_violations(subject, _per_sample_violations(plan, host, layout))
    tensors = {n: v for n, v in given.items() if plan[n].is_tensor and not is_absent(v, layout)}
    raise_violations(subject, _needs_prompts(plan, tensors, layout))
    device = base.device if base is not None else _common_device(plan, tensors)
    # The number of groups may be another one now.
    again = {name for name in kept if plan[name].is_tensor and plan[name].axis == "groups" and is_new}
    repairs: dict[str, Any] = {} if base is None else dict(base.repairs)
    is_part = base is not None and base.is_part
    draft = Draft(plan, current_settings(), values, layout, device, {*tensors, *again}, repairs, is_part)
    draft.violations += unknown
    return draft, tensors


# -- host values ---------------------------------------------------------------------------------------------------


def _defaults(plan: Plan, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {n: spec.default for n, spec in plan.items() if spec.default is not UNBOUND and n not in kept}


def _host_values(plan: Plan, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Violation]]:
    values: dict[str, Any] = {}
    violations: list[Violation] = []
    for name, value in given.items():
        spec = plan[name]
        if spec.adapter is None:
            continue
        plain = value.tolist() if hasattr(value, "tolist") else value
        try:
            values[name] = spec.adapter.validate_python(plain)
        except ValidationError as error:
            # None says that there is nothing, unless the annotation gives it a meaning.
            violations += [_refused(name, fault) for fault in error.errors()] if value is not None else []
    return values, violations


def _refused(name: str, fault: Mapping[str, Any]) -> Violation:
    """What pydantic says of a host value, in the words of a violation."""
    row = next((place for place in fault["loc"][:1] if isinstance(place, int)), None)
    expected = str(fault["msg"]).removeprefix("Input should be ")
    return Violation(name, "metadata", expected, repr(fault["input"])[:80], row=row)


def _per_sample_violations(plan: Plan, host: Mapping[str, Any], layout: Layout) -> list[Violation]:
    expected = f"one entry for each of the {layout.num_samples} samples"
    return [
        Violation(name, "length", expected, counted(len(value), "entry"))
        for name, value in host.items()
        if plan[name].role is Role.PER_SAMPLE and len(value) != layout.num_samples
    ]


def _needs_prompts(plan: Plan, tensors: Iterable[str], layout: Layout) -> list[Violation]:
    if layout.prompt_lengths is not None:
        return []
    hint = "pass prompt_lengths=[...]"
    return [
        Violation("prompt_lengths", "missing", f"prompt lengths, for the whole-sequence field {name}", "none", hint)
        for name in tensors
        if plan[name].axis == "sequence"
    ]


def _make_layout(subject: str, values: Mapping[str, Any]) -> Layout:
    try:
        return Layout(**{name: values[name] for name in LAYOUT_FIELDS if name in values})
    except ValueError as error:
        raise_violations(subject, getattr(error, "violations", ()))
        raise


# -- presence ------------------------------------------------------------------------------------------------------


def _unknown(name: str, plan: Plan) -> Violation:
    close = get_close_matches(name, plan, n=1)
    others = "declare it in a schema of your own that inherits from this one, whose fields are " + ", ".join(plan)
    return Violation(name, "unknown", "a field of the schema", name, f"did you mean {close[0]}?" if close else others)


def _missing(spec: FieldSpec) -> Violation:
    return Violation(
        spec.name, "missing", f"{describe(spec)}, which the schema requires", "nothing", f"pass {spec.name}="
    )


def _common_device(plan: Plan, tensors: Mapping[str, Any]) -> torch.device:
    """The device of most fields; on a tie, of the first."""
    devices = Counter(
        found.device
        for name, value in tensors.items()
        if not plan[name].any_device and (found := _first_tensor(value)) is not None
    )
    return devices.most_common(1)[0][0] if devices else torch.get_default_device()


def _first_tensor(value: Any) -> Tensor | None:
    rows = value if isinstance(value, list | tuple) else (value,)
    return next((row for row in rows if isinstance(row, Tensor)), None)


# -- tensors -------------------------------------------------------------------------------------------------------


def _take_tensors(draft: Draft, tensors: Mapping[str, Any]) -> None:
    for spec in draft.specs(tensors):
        with ordinary_tensors() if spec.role is Role.FIXED else nullcontext():
            _take_tensor(draft, spec, tensors[spec.name])


def _take_tensor(draft: Draft, spec: FieldSpec, value: Any) -> None:
    intake = take_in(spec, value, draft.layout, draft.device)
    draft.violations += intake.violations
    tensor = intake.tensor
    if tensor is None:
        return
    if spec.role is Role.FIXED:
        tensor, violation = cut_graph(spec, tensor, draft.settings)
        draft.violations += [] if violation is None else [violation]
        if pins_memory(tensor):
            draft.repairs[f"{spec.name}: copied out of a larger storage"] = tensor.numel()
            tensor = tensor.clone(memory_format=torch.contiguous_format)
    tensor = _convert(draft, spec, tensor)
    draft.values[spec.name] = tensor
    if intake.missing:
        draft.missing[spec.name] = intake.missing


def _convert(draft: Draft, spec: FieldSpec, tensor: Tensor) -> Tensor:
    """The conversions that lose nothing: masks to bool, integers to float32; half precision only when asked for."""
    dtype = _name(tensor.dtype)
    if dtype in spec.dtypes:
        return tensor
    if spec.family == "bool":
        return _to_bool(draft, spec, tensor)
    if spec.family == "float" and not tensor.is_floating_point() and not tensor.is_complex():
        return tensor.to(getattr(torch, spec.usual_dtype))
    if dtype in HALF_PRECISION and "float32" in spec.dtypes:
        if spec.upcast or draft.settings.half_precision == "upcast":
            draft.repairs[f"{spec.name}: upcast from {dtype}"] = tensor.numel()
            return tensor.float()
        cause = "score in float32: in half precision a log-prob of -12.3 is off by 3 %"
        cause = cause if spec.holds_log_probs else "compute it in float32"
        accept = 'tag the field Upcast or build under settings(half_precision="upcast")'
        hint = f"{cause}. To accept what is already lost, {accept}"
        draft.violations.append(Violation(spec.name, "dtype", " or ".join(spec.dtypes), dtype, hint))
        return tensor
    expected = " or ".join(spec.dtypes)
    draft.violations.append(Violation(spec.name, "dtype", expected, dtype, f"convert it to {spec.usual_dtype}"))
    return tensor


def _to_bool(draft: Draft, spec: FieldSpec, mask: Tensor) -> Tensor:
    """{0, 1} of any dtype to bool. Whether other values occur is looked at where looking costs no synchronisation."""
    if draft.settings.level_on(mask.device) == "values" and can_look(mask):
        wrong = (mask != 0) & (mask != 1)
        if bool(wrong.any()):
            index = int(wrong.flatten().nonzero()[0])
            hint = "weights other than 0 and 1 belong in a field of their own, for example loss_weights"
            found = f"{mask.flatten()[index].item()}"
            place = _place_of(draft.layout, spec, index, mask)
            draft.violations.append(Violation(spec.name, "mask", "0 and 1, or bool", found, hint, *place))
    return mask != 0


def _place_of(layout: Layout, spec: FieldSpec, index: int, tensor: Tensor) -> tuple[int, int] | tuple[None, None]:
    if spec.axis != "tokens" or tensor.dim() != 1 or tensor.shape[0] != layout.num_tokens:
        return None, None
    return int(layout.sample_ids()[index]), int(layout.positions()[index])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- checks --------------------------------------------------------------------------------------------------------


def _check(draft: Draft) -> None:
    absent = [spec for spec in draft.plan.values() if spec.required and spec.name not in draft.values]
    reported = {violation.field for violation in draft.violations}
    draft.violations += [_missing(spec) for spec in absent if spec.name not in reported]
    specs = draft.specs(draft.fresh & set(draft.values))
    if draft.settings.level != "off":
        draft.violations += shape_violations(draft.plan, specs, draft.values, draft.layout)
        draft.violations += _device_violations(draft, specs)
        draft.violations += _no_graph(draft, specs)
    if draft.violations:
        draft.violations += refuse_missing(draft)
        return
    with ordinary_tensors():
        draft.violations += resolve_missing(draft)
    if draft.settings.level_on(draft.device) == "values" and not draft.violations:
        draft.violations += value_violations(specs, draft.values, draft.layout)


def _device_violations(draft: Draft, specs: list[FieldSpec]) -> list[Violation]:
    wrong = []
    for spec in specs:
        device = draft.tensor(spec.name).device
        if not spec.any_device and device != draft.device:
            hint = f"move it with .to({str(draft.device)!r}), or tag the field AnyDevice if the loss shall move it"
            wrong.append(Violation(spec.name, "device", f"{draft.device}, where the batch is", str(device), hint))
    return wrong


def _no_graph(draft: Draft, specs: list[FieldSpec]) -> list[Violation]:
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return []
    expected = "a tensor with an autograd graph: the loss is differentiated through it"
    hint = "pass the output of the current forward pass, without detach; for evaluation use torch.no_grad()"
    return [
        Violation(spec.name, "no graph", expected, "no graph", hint)
        for spec in specs
        if spec.role is Role.TRAINABLE and not draft.tensor(spec.name).requires_grad
    ]
