# Without `from __future__ import annotations`: annotations are objects here. See test_string_annotations.py.
"""A schema is compiled when its class is made; a wrong one fails there."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import pytest
import torch
from jaxtyping import Bool, Complex, Float, Float16, Float32, Int, Int64, Shaped
from pydantic import Field, PositiveInt
from torch import Tensor

from rollout_contract import AnyDevice, Fixed, Metadata, PerSample, RolloutBatch, Trainable, Upcast, unbound
from rollout_contract.errors import MetadataError, SchemaError
from rollout_contract.roles import Role
from rollout_contract.schemas import KLBatch, PolicyBatch, TISBatch


def refused(make: Any) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        make()
    return caught.value


class Wide(RolloutBatch):
    """One field of each kind."""

    per_token: Fixed[Float[Tensor, "tokens"]]
    per_sample: Fixed[Float32[Tensor, "batch"]]
    per_group: Fixed[Float[Tensor, "groups"]] = unbound()
    per_sequence: Fixed[Int[Tensor, "sequence"]] = unbound()
    top: Fixed[Float[Tensor, "tokens topk"]] = unbound()
    pair: Fixed[Int64[Tensor, "tokens 2"]] = unbound()
    live: Trainable[Float[Tensor, "tokens"]] = unbound()
    anywhere: Fixed[Annotated[Float[Tensor, "tokens"], AnyDevice, Upcast]] = unbound()
    note: Metadata[str] = "none"
    labels: PerSample[str] = unbound()


def test_what_is_compiled() -> None:
    plan = Wide.__plan__
    assert plan["per_token"].role is Role.FIXED
    assert plan["per_token"].required
    assert (plan["per_token"].dims, plan["per_token"].dtypes) == (("tokens",), ("float32", "float64"))
    assert plan["per_sample"].dtypes == ("float32",)
    assert plan["per_sample"].axis == "batch"
    assert not plan["per_group"].required
    assert plan["per_sequence"].family == "int"
    assert plan["top"].dims == ("tokens", "topk")
    assert plan["pair"].dims == ("tokens", 2)
    assert plan["live"].role is Role.TRAINABLE
    assert plan["anywhere"].any_device
    assert plan["anywhere"].upcast
    assert not plan["note"].is_tensor
    assert plan["labels"].axis == "batch"


def test_fields_are_inherited_and_keep_their_order() -> None:
    class Step(PolicyBatch, TISBatch, KLBatch):
        """All of them."""

    assert set(Step.__plan__) == set(PolicyBatch.__plan__) | set(TISBatch.__plan__) | set(KLBatch.__plan__)
    assert next(iter(Step.__plan__)) == "response_lengths"


def test_only_fields_that_hold_log_probs_of_response_tokens_may_miss_values() -> None:
    class Scores(RolloutBatch):
        prompt_log_probs: Fixed[Float[Tensor, "sequence"]]
        own_log_probs: Fixed[Float[Tensor, "tokens topk"]]
        score: Fixed[Float[Tensor, "tokens"]]

    assert [name for name, spec in Scores.__plan__.items() if spec.may_miss_values] == ["own_log_probs"]


# -- annotations that are wrong -------------------------------------------------------------------------------------


def field(annotation: Any, **body: Any) -> Any:
    return lambda: type("Mine", (RolloutBatch,), {"__annotations__": {"x": annotation}, **body})


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Float[Tensor, "tokens"], "exactly one tag"),
        (int, "exactly one tag"),
        (Trainable[Fixed[Float[Tensor, "tokens"]]], "exactly one tag"),
        (Fixed[Tensor], "a jaxtyping annotation with dimensions"),
        (Fixed[Float[torch.nn.Parameter, "tokens"]], "a jaxtyping annotation with dimensions"),
        (Fixed[Float[Tensor, ""]], "a jaxtyping annotation with dimensions"),
        (Fixed[Float[Tensor, "..."]], "a first dimension out of"),
        (Fixed[Float[Tensor, "vocab tokens"]], "a first dimension out of tokens, batch, groups, sequence"),
        (Fixed[Float[Tensor, "token"]], "a first dimension out of"),
        (Fixed[Float[Tensor, "7"]], "a first dimension out of"),
        (Fixed[Float[Tensor, "tokens *more"]], "dimensions that are names or numbers"),
        (Fixed[Float[Tensor, "tokens topk+1"]], "dimensions that are names or numbers"),
        (Fixed[Float[Tensor, "tokens _"]], "dimensions that are names or numbers"),
        (Fixed[Float[Tensor, "tokens batch"]], "tokens, batch, groups, sequence as first dimension only"),
        (Fixed[Float[Tensor, "batch tokens"]], "tokens, batch, groups, sequence as first dimension only"),
        (Trainable[Int[Tensor, "tokens"]], "Trainable[Float[...]]"),
        (Trainable[Bool[Tensor, "tokens"]], "Trainable[Float[...]]"),
        (Metadata[Tensor], "an annotation that pydantic can validate"),
        (PerSample[Tensor], "an annotation that pydantic can validate"),
        (Fixed[Shaped[Tensor, "tokens"]], "a jaxtyping annotation with dimensions"),
        (Fixed[Complex[Tensor, "tokens"]], "Float, Int or Bool"),
    ],
    ids=str,
)
def test_annotations_that_are_refused(annotation: Any, expected: str) -> None:
    error = refused(field(annotation))
    assert error.field == "x"
    assert error.expected.startswith(expected)


def test_all_wrong_fields_are_reported_at_once() -> None:
    def make() -> Any:
        class Mine(RolloutBatch):
            a: Float[Tensor, "tokens"]
            b: Fixed[Float[Tensor, "vocab"]]
            c: Fixed[Float[Tensor, "tokens"]] = None

        return Mine

    assert [violation.field for violation in refused(make).violations] == ["a", "b", "c"]


def test_tensor_fields_have_no_default() -> None:
    assert refused(field(Fixed[Float[Tensor, "tokens"]], x=torch.zeros(3))).expected == "no default, or unbound()"
    assert refused(field(PerSample[int], x=())).expected == "no default, or unbound()"


def test_class_variables_are_no_fields() -> None:
    class Counted(RolloutBatch):
        version: ClassVar[int] = 3
        bare: ClassVar = "x"

    assert Counted.version == 3
    assert set(Counted.__plan__) == set(RolloutBatch.__plan__)


# -- defaults of metadata -------------------------------------------------------------------------------------------


class Noted(RolloutBatch):
    """Metadata in every state."""

    policy_version: Metadata[int] = 7
    reward_model: Metadata[str | None] = None
    extra: Metadata[dict[str, int]] = {}  # noqa: RUF012
    task: Metadata[str]


def noted(**changes: Any) -> Noted:
    return Noted(**({"response_lengths": [1], "loss_mask": [[1]], "task": "sort"} | changes))


def test_metadata_has_its_default() -> None:
    batch = noted()
    assert (batch.policy_version, batch.reward_model, batch.extra, batch.task) == (7, None, {}, "sort")
    assert noted(policy_version=8).policy_version == 8
    assert noted(reward_model="rm").reward_model == "rm"
    assert noted(reward_model=None).reward_model is None


def test_metadata_that_is_required_or_wrong() -> None:
    with pytest.raises(SchemaError, match="a default that its annotation allows"):
        field(Metadata[int], x="seven")()
    with pytest.raises(MetadataError) as caught:
        noted(policy_version="eight")
    assert caught.value.field == "policy_version"
    with pytest.raises(Exception, match=r"task \[missing\]"):
        noted(task=None)


def test_constraints_of_host_values_hold() -> None:
    class Positive(RolloutBatch):
        version: Metadata[PositiveInt]
        score: PerSample[Annotated[float, Field(le=1.0)]] = unbound()

    with pytest.raises(MetadataError) as caught:
        Positive(response_lengths=[1, 1], loss_mask=[1, 1], version=0, score=[0.5, 1.5])
    assert [(v.field, v.row, v.found, v.expected) for v in caught.value.violations] == [
        ("version", None, "0", "greater than 0"),
        ("score", 1, "1.5", "less than or equal to 1"),
    ]


def test_a_wider_schema_brings_its_defaults() -> None:
    plain = RolloutBatch(response_lengths=[1], loss_mask=[[1]])
    assert plain.extend(Noted, task="sort").policy_version == 7


def test_defaults_are_not_shared() -> None:
    assert noted().extra is not noted().extra


# -- one meaning for each field -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        Trainable[Float[Tensor, "tokens"]],
        Fixed[Float[Tensor, "batch"]],
        Fixed[Float[Tensor, "tokens topk"]],
        Fixed[Int[Tensor, "tokens"]],
        Metadata[float],
    ],
)
def test_a_subclass_keeps_role_and_shape(annotation: Any) -> None:
    error = refused(lambda: type("Mine", (PolicyBatch,), {"__annotations__": {"old_log_probs": annotation}}))
    assert error.field == "old_log_probs"
    assert error.expected == "as in Scored: fixed float[tokens]"


def test_a_subclass_may_say_the_same_again() -> None:
    class Mine(PolicyBatch):
        old_log_probs: Fixed[Float[Tensor, "tokens"]]
        advantages: Fixed[Float32[Tensor, "tokens"]]

    assert Mine.__plan__["advantages"].dtypes == ("float32",)


@pytest.mark.parametrize("other", [Trainable[Float[Tensor, "tokens"]], Fixed[Float[Tensor, "batch"]]])
def test_bases_must_agree(other: Any) -> None:
    class One(RolloutBatch):
        score: Fixed[Float[Tensor, "tokens"]]

    two = type("Two", (RolloutBatch,), {"__annotations__": {"score": other}})
    for bases in ((One, two), (two, One)):
        assert refused(lambda bases=bases: type("Both", bases, {})).field == "score"


# -- nothing between a field and the loss ---------------------------------------------------------------------------


def prop(self: Any) -> Tensor:
    return torch.zeros(1)


@pytest.mark.parametrize(
    "name",
    [
        *("old_log_probs", "loss_mask", "response_lengths", "verify", "_verify", "layout", "device", "has"),
        *("__getattribute__", "__getattr__", "__init__", "__new__", "__setattr__", "__plan__", "__reduce__"),
        "__deepcopy__",
    ],
)
@pytest.mark.parametrize("through", ["class", "mixin"])
def test_overrides_are_refused(name: str, through: str) -> None:
    body = {name: property(prop) if "log" in name else prop}
    if through == "class":
        error = refused(lambda: type("Mine", (PolicyBatch,), body))
    else:
        error = refused(lambda: type("Mine", (type("Mixin", (), body), PolicyBatch), {}))
    assert (error.field, error.found) == (name, "an override")


def test_a_class_that_escaped_its_compilation_makes_no_batches() -> None:
    silent = type("Silent", (), {"__init_subclass__": classmethod(lambda cls: None)})
    escaped = type("Escaped", (silent, PolicyBatch), {"old_log_probs": property(prop)})
    with pytest.raises(SchemaError, match=r"super\(\).__init_subclass__"):
        escaped(response_lengths=[1], loss_mask=[1], old_log_probs=[-1.0], advantages=[1.0])
    assert refused(lambda: type("Mine", (PolicyBatch,), {"__init_subclass__": prop})).field == "__init_subclass__"


def test_a_mixin_behind_the_schema_overrides_nothing() -> None:
    mixin = type("Mixin", (), {"old_log_probs": property(prop)})
    batch = type("Mine", (PolicyBatch, mixin), {})(
        response_lengths=[1], loss_mask=[1], old_log_probs=[-1.0], advantages=[1.0]
    )
    assert batch.old_log_probs.tolist() == [-1.0]


def test_slots_and_values_in_place_of_a_field() -> None:
    assert refused(lambda: type("Mine", (PolicyBatch,), {"__slots__": ("old_log_probs",)})).field == "old_log_probs"
    assert refused(lambda: type("Mine", (PolicyBatch,), {"old_log_probs": torch.zeros(1)})).field == "old_log_probs"


def test_a_field_cannot_take_the_name_of_a_method() -> None:
    error = refused(
        lambda: type("Mine", (RolloutBatch,), {"__annotations__": {"layout": Fixed[Float[Tensor, "tokens"]]}})
    )
    assert error.found == "the method layout()"


def test_methods_properties_generics_and_docstrings_are_welcome() -> None:
    kind = TypeVar("kind")

    class Mine(PolicyBatch, Generic[kind]):
        """Documented."""

        def surprise(self) -> Tensor:
            return -self.old_log_probs

        @property
        def largest(self) -> float:
            return float(self.advantages.max())

        def __repr__(self) -> str:
            return "mine"

    batch = Mine(response_lengths=[1], loss_mask=[1], old_log_probs=[-1.0], advantages=[2.0])
    assert (batch.surprise().tolist(), batch.largest, repr(batch)) == ([1.0], 2.0, "mine")


def test_bool_and_mapping_fields() -> None:
    class Flags(RolloutBatch):
        is_tool: Fixed[Bool[Tensor, "tokens"]]
        info: Metadata[Mapping[str, float]]

    batch = Flags(response_lengths=[2], loss_mask=[1, 1], is_tool=[0, 1], info={"a": 1})
    assert batch.is_tool.tolist() == [False, True]
    assert batch.info == {"a": 1.0}


def test_an_exact_half_precision_dtype_can_be_declared() -> None:
    class Small(RolloutBatch):
        score: Fixed[Float16[Tensor, "tokens"]]

    assert Small(response_lengths=[1], loss_mask=[1], score=torch.ones(1).half()).score.dtype == torch.float16
