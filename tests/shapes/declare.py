"""From the dimensions that a kernel's jaxtyping annotations name to the declarations that pyrefly proves.

pyrefly wants every dimension declared by a decorator that it takes from ``shape_extensions``. The kernels name theirs
already, and shall not need that package; so a copy of each is declared here, line by line the same::

    def segment_sum(values: Float[Tensor, "tokens"], ids: Int[Tensor, "tokens"], num_segments: int) -> ...

    @shape_extensions.shape_vars("tokens, segments")
    def segment_sum(values: shape_extensions.Shaped[Tensor, "[tokens]"], ..., num_segments: ...[int, "segments"]) -> ...

An integer called ``num_segments`` is the size of dimension ``segments``, so what has that many entries cannot be taken
for something else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

KINDS = {"Float", "Int", "Bool", "Shaped"}
"""The jaxtyping names that kernels use. The kind is not looked at: pyrefly proves shapes, not dtypes."""

SIZE_OF = {"num_samples": "batch"}
"""Sizes whose name is not that of their dimension."""


@dataclass
class Edits:
    """Replacements in a source text, by position."""

    source: str
    replacements: list[tuple[int, int, str]] = field(default_factory=list)

    def offset(self, line: int, column: int) -> int:
        """Position of a column (in bytes, as ``ast`` counts) of a line, which count from 1 and 0."""
        return sum(len(text) for text in self.source.encode().splitlines(keepends=True)[: line - 1]) + column

    def replace(self, node: ast.expr, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        self.replacements.append((start, self.offset(node.end_lineno, node.end_col_offset), text))

    def insert_line(self, line: int, text: str) -> None:
        start = self.offset(line, 0)
        self.replacements.append((start, start, text + "\n"))

    def apply(self) -> str:
        data = self.source.encode()
        for start, end, text in sorted(self.replacements, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()


Definition = ast.FunctionDef | ast.ClassDef


def definitions(tree: ast.AST) -> Iterator[Definition]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def annotations(node: Definition) -> list[ast.expr]:
    """Those of a function's parameters and result, or of a class's own fields."""
    if isinstance(node, ast.ClassDef):
        return [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
    found = [parameter.annotation for parameter in parameters(node)]
    return [annotation for annotation in (*found, node.returns) if annotation is not None]


def shapes(annotation: ast.expr) -> Iterator[tuple[ast.Subscript, str, str]]:
    """Each jaxtyping annotation inside of another: the node, its array type, its dimensions."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in KINDS:
            assert isinstance(node.slice, ast.Tuple), ast.unparse(node)
            array, dims = node.slice.elts
            assert isinstance(dims, ast.Constant), ast.unparse(node)
            yield node, ast.unparse(array), dims.value


def spelled(dims: str) -> str:
    """``"tokens _ *rest"`` as pyrefly writes it."""
    words = {"_": "int"}
    rest = [f"*shape_extensions.Elements[{d[1:]}]" if d.startswith("*") else words.get(d, d) for d in dims.split()]
    return f"[{', '.join(rest)}]"


def declared(source: str) -> str:
    """The same module with its dimensions declared."""
    tree, edits = ast.parse(source), Edits(source)
    for node in definitions(tree):
        names: dict[str, None] = {}
        for annotation in annotations(node):
            for subscript, array, dims in shapes(annotation):
                names |= dict.fromkeys(dim for dim in dims.split() if dim != "_")
                edits.replace(subscript, f'shape_extensions.Shaped[{array}, "{spelled(dims)}"]')
        if not names:
            continue
        for parameter in parameters(node) if isinstance(node, ast.FunctionDef) else ():
            if parameter.arg.startswith("num_") and parameter.annotation is not None:
                size = SIZE_OF.get(parameter.arg, parameter.arg.removeprefix("num_"))
                names[size] = None
                edits.replace(parameter.annotation, f'shape_extensions.Shaped[int, "{size}"]')
        first = (node.decorator_list or [node])[0].lineno
        indent = " " * node.col_offset
        edits.insert_line(first, f'{indent}@shape_extensions.shape_vars("{", ".join(names)}")')
    edits.insert_line(after_docstring(tree), "import shape_extensions")
    return edits.apply()


def after_docstring(tree: ast.Module) -> int:
    """The line of the first import that is not from ``__future__``."""
    for node in tree.body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            return node.lineno
    raise ValueError("a module without imports has no tensors")
