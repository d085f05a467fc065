"""The shape-aware torch stubs, with the shapes of the methods that they leave open and kernels use.

Without these, ``values > 0`` is anything, and ``values.where(mask, 0.0)`` or ``per_sample[sample_ids]`` is a tensor of
any shape, so nothing that is computed from them is checked.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_COMPARISON = """
    @overload
    def {name}[Other: IntTuple](self: Tensor[Shape], other: Tensor[Other]) -> Tensor[broadcast(Shape, Other)]: ...
    @overload
    def {name}(self, other: builtins.float) -> Self: ...
"""

METHODS = (
    "".join(_COMPARISON.format(name=name) for name in ("__lt__", "__le__", "__gt__", "__ge__"))
    + """
    @overload
    def where[Where: IntTuple, Other: IntTuple](
        self: Tensor[Shape], condition: Tensor[Where], other: Tensor[Other]
    ) -> Tensor[broadcast(Where, broadcast(Shape, Other))]: ...
    @overload
    def where[Where: IntTuple](
        self: Tensor[Shape], condition: Tensor[Where], other: builtins.float
    ) -> Tensor[broadcast(Where, Shape)]: ...
    @overload
    def new_zeros(self, size: tuple[()]) -> Tensor[[]]: ...
    @overload
    def new_zeros[Size: IntTuple](self, *size: *Size) -> Tensor[Size]: ...
    @overload
    def new_ones[Size: IntTuple](self, size: Size) -> Tensor[Size]: ...
    @overload
    def new_ones[Size: IntTuple](self, *size: *Size) -> Tensor[Size]: ...
    @overload
    def new_full(self, size: tuple[()], fill_value: builtins.float) -> Tensor[[]]: ...
    @overload
    def new_full[Size: IntTuple](self, size: Size, fill_value: builtins.float) -> Tensor[Size]: ...
    def index_add[Index: IntTuple](
        self, dim: builtins.int, index: Tensor[Index], source: Tensor[Index]
    ) -> Self: ...
    def diff[Length: IntVar](self: Tensor[[Length]]) -> Tensor[[Length - 1]]: ...
    def flip(self, *dims: builtins.int) -> Self: ...
    def log_softmax(self, dim: builtins.int) -> Self: ...
    def argsort(
        self, dim: builtins.int = -1, descending: builtins.bool = False, stable: builtins.bool = False
    ) -> Self: ...
    def scatter[Index: IntTuple](
        self, dim: builtins.int, index: Tensor[Index], src: Tensor[Index] | builtins.float
    ) -> Self: ...
    def scatter_add[Index: IntTuple](self, dim: builtins.int, index: Tensor[Index], src: Tensor[Index]) -> Self: ...
    def scatter_reduce[Index: IntTuple](
        self,
        dim: builtins.int,
        index: Tensor[Index],
        src: Tensor[Index],
        reduce: builtins.str,
        *,
        include_self: builtins.bool = True,
    ) -> Self: ...
"""
)

# A tensor of integers picks rows. (A tensor of bools would not; no kernel indexes with one, since that waits for the
# device.)
PICKING = """
    @overload
    def __getitem__[Picked: IntTuple](
        self: Tensor[Shape], index: Tensor[Picked]
    ) -> Tensor[index_select_shape(Shape, 0, Picked)]: ...
"""

FUNCTIONS = """
def logaddexp[Shape: IntTuple, Other: IntTuple](
    input: Tensor[Shape], other: Tensor[Other]
) -> Tensor[broadcast(Shape, Other)]: ...
def lerp[Shape: IntTuple, Other: IntTuple, Weight: IntTuple](
    input: Tensor[Shape], end: Tensor[Other], weight: Tensor[Weight]
) -> Tensor[broadcast(broadcast(Shape, Other), Weight)]: ...
"""


def complete_stubs(site_packages: Path, target: Path) -> None:
    """A copy of the installed ``torch-stubs`` in ``target`` that knows these methods, too."""
    shutil.copytree(site_packages / "torch-stubs", target / "torch-stubs")
    module = target / "torch-stubs/__init__.pyi"
    text = module.read_text()
    for name in re.findall(r"^    def (\w+)", METHODS, re.MULTILINE):
        text = re.sub(rf"^    def {name}\b", f"    def _replaced_{name}", text, flags=re.MULTILINE)
    for name in re.findall(r"^def (\w+)", FUNCTIONS, re.MULTILINE):
        text = re.sub(rf"^def {name}\b", f"def _replaced_{name}", text, flags=re.MULTILINE)
    text = _before(text, "    def __getattr__(self, name: str) -> Any: ...\n    def __iter__", METHODS)
    text = _before(text, "    @overload\n    def __getitem__[I: Index](", PICKING)
    module.write_text(text + FUNCTIONS)


def _before(text: str, place: str, addition: str) -> str:
    assert text.count(place) == 1, f"pyrefly-torch-stubs changed: {place!r} occurs {text.count(place)} times"
    return text.replace(place, addition + place)
