"""Where something stands in a source file."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from rollout_contract.check.findings import Place

_LIBRARY = str(Path(__file__).resolve().parent.parent)
_CHECK = str(Path(__file__).resolve().parent)
_OTHERS = (str(Path(torch.__file__).parent), _CHECK, "<", str(Path(traceback.__file__).parent))


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


class Source:
    """The text of a function or class, to find lines in."""

    file: str

    def __init__(self, thing: Any) -> None:
        plain = inspect.unwrap(thing) if callable(thing) else thing
        code = getattr(plain, "__code__", None)
        self.file, self._first = _start(plain, code)

    @cached_property
    def node(self) -> ast.AST | None:
        tree = _tree(self.file)
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, kinds) and self._first in _possible_starts(node):
                return node
        return None

    @property
    def place(self) -> Place:
        """The line of ``def`` or ``class``."""
        return Place(self.file, getattr(self.node, "lineno", self._first))

    def line_where(self, matches: Callable[[ast.AST], bool]) -> Place | None:
        """The first line in the body that holds a matching node."""
        body = getattr(self.node, "body", [])
        found = [
            line
            for part in (body if isinstance(body, list) else [body])
            for node in ast.walk(part)
            if (line := getattr(node, "lineno", 0)) and matches(node)
        ]
        return Place(self.file, min(found)) if found else None

    def reading(self, name: str, owner: str = "") -> Place | None:
        """Where an input is read: as a variable, as an attribute, or by its name in a string.

        With ``owner``, where it is read from the variable of that name.
        """
        if owner:
            return self.line_where(lambda node: _reads_of(node, name, owner))
        likenesses = set() if self.node is None else {id(part) for part in _likenesses(self.node)}
        found = self.line_where(lambda node: _reads(node, name) and id(node) not in likenesses)
        return found or self.line_where(lambda node: _reads(node, name))

    def naming(self, text: str) -> Place | None:
        """Where a string constant stands, or a keyword argument has this name."""
        return self.line_where(
            lambda node: (
                (isinstance(node, ast.Constant) and node.value == text)
                or (isinstance(node, ast.keyword) and node.arg == text)
            )
        )

    def declaring(self, name: str) -> Place | None:
        """Where a class body annotates a field."""
        return self.line_where(
            lambda node: isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) == name
        )


def _likenesses(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions that are read for their dtype, device or shape alone: ``x.to(y)``, ``like=y``, ``y.dtype``."""
    for node in ast.walk(tree):
        is_attribute = isinstance(node, ast.Attribute) and node.attr in ("dtype", "device", "shape")
        if is_attribute or (isinstance(node, ast.keyword) and node.arg == "like"):
            yield getattr(node, "value", node)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", "")
            yield from node.args if called in ("to", "type_as") or called.endswith("_like") else ()


def _reads(node: ast.AST, name: str) -> bool:
    is_attribute = isinstance(node, ast.Attribute) and node.attr == name
    is_variable = isinstance(node, ast.Name) and node.id == name
    return is_attribute or is_variable or (isinstance(node, ast.Constant) and node.value == name)


def _reads_of(node: ast.AST, name: str, owner: str) -> bool:
    """``owner.name``, or a call that gets both, such as ``read(owner, "name")``."""
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == owner
    if not isinstance(node, ast.Call):
        return False
    return any(_reads(part, owner) for part in node.args) and any(_reads(part, name) for part in node.args)


def _start(thing: Any, code: Any) -> tuple[str, int]:
    if code is not None:
        return code.co_filename, code.co_firstlineno
    try:
        return inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return "", 0


def _possible_starts(node: ast.AST) -> set[int]:
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
    return {getattr(node, "lineno", 0), *decorators[:1]}


def assignment(file: str, name: str) -> Place | None:
    """Where a module assigns a name."""
    tree = _tree(file)
    for node in tree.body if tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return Place(file, node.lineno)
    return None


# -- frames --------------------------------------------------------------------------------------------------------


def _is_foreign(file: str, home: str) -> bool:
    """Whether a frame's file belongs to torch, to this library or to an installed package, unless it is ``home``."""
    if file == home:
        return False
    if file.startswith(_LIBRARY):
        return not home.startswith(_LIBRARY) or file.startswith(_OTHERS)
    return file.startswith(_OTHERS) or "site-packages" in file


def line_of_call(home: str, depth: int = 1) -> Place | None:
    """The innermost running line that belongs to the code under check; ``home`` is the file it was defined in."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not _is_foreign(frame.f_code.co_filename, home):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def line_of_error(error: BaseException, home: str) -> Place | None:
    """The innermost line of the code under check in a traceback."""
    places = [place for place in _walk(error.__traceback__) if not _is_foreign(place.file, home)]
    return places[-1] if places else None


def _walk(trace: TracebackType | None) -> Iterator[Place]:
    while trace is not None:
        yield Place(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
