"""Kernels are proved: pyrefly accepts them, and reports every shape bug that is seeded into them.

A dimension that a signature names is a promise. So each one is also broken by itself, in the result and in every
parameter; where nothing is reported then, the checker cannot see the promise, and ``OPEN`` says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shapes.declare import Edits, declared, definitions, parameters, shapes
from tests.shapes.prover import Error, kernel_sources, prove
from tests.shapes.seeds import KINDS, read_seeds

pytestmark = pytest.mark.uninstrumented("runs another program")

WITHOUT_A_WEIGHT = (
    "Returned type `Tensor[[tokens, width]] | Tensor[[tokens, vocab]]` is not assignable to declared return type "
    "`Tensor[[tokens, vocab]]`"
)
KNOWN = {("projection", WITHOUT_A_WEIGHT): "without an output layer the states are logits: their width is the vocab"}

_AUTOGRAD = "torch.autograd.Function.apply takes and gives anything"
_MOMENTS = "the statistics may be of one set or of many, so their shape is open"
_BITS = "floats are viewed as integers"
OPEN = {
    "choice.choose": {"like": "its dtype alone is read"},
    "clipped_loss.clipped_loss": dict.fromkeys(("log_ratio", "advantages", "result 0", "result 1"), _AUTOGRAD),
    "covariance.fraction_count": {"loss_mask": "a sum over all tokens, whatever they are"},
    "divergence.divergence_of_states": dict.fromkeys(
        ("states", "weight", "teacher_states", "teacher_weight", "temperature", "result 0"), _AUTOGRAD
    ),
    "groups.above_mean": dict.fromkeys(("rewards", "result 0"), _MOMENTS),
    "groups.above_others": dict.fromkeys(("rewards", "result 0"), _MOMENTS),
    "groups.above_weighted_mean": {"result 0": _MOMENTS},
    "groups.keep_singletons": {"result 0": _MOMENTS},
    "log_probs.kept_log_probs": {"token_ids": "scatter takes an index with fewer rows"},
    "log_probs.scores_of_states": dict.fromkeys(
        ("states", "weight", "token_ids", "temperature", "keep_mask"), _AUTOGRAD
    ),
    "masking.fill_outside": {"result 0": _BITS},
    "masking.zero_outside": {"result 0": _BITS},
    "scan.reverse_scan": {"decays": "both are cut into rows of a constant width, whose number is not known"},
}
WITHOUT_SEEDS = {"masking"}
"""Kernels of which no result has a shape that the checker sees."""


def unexpected(errors: list[Error], module: str) -> list[Error]:
    """The errors of a copy of ``module`` that it does not have as it is."""
    return [error for error in errors if (module, error.message) not in KNOWN]


def test_kernels_are_proved(tmp_path: Path) -> None:
    sources = {name: declared(text) for name, text in kernel_sources().items()}
    found = prove(tmp_path, sources)
    assert {(error.module, error.message) for error in found} == set(KNOWN), "\n".join(map(str, found))


def functions(source: str) -> list[ast.FunctionDef]:
    return [node for node in definitions(ast.parse(source)) if isinstance(node, ast.FunctionDef)]


def function_around(source: str, text: str) -> str:
    """The name of the function of ``source`` in which ``text`` stands."""
    line = source[: source.index(text)].count("\n") + 1
    return next(node.name for node in functions(source) if node.lineno <= line <= (node.end_lineno or 0))


def test_each_seeded_bug_is_reported_where_it_is(tmp_path: Path) -> None:
    sources, seeds = kernel_sources(), read_seeds()
    copies = {name: declared(text) for name, text in sources.items()}
    for number, seed in enumerate(seeds):
        assert sources[seed.module].count(seed.old) == 1, f"{seed.module}: {seed.old!r} must occur once"
        copies[f"seed_{number}"] = declared(sources[seed.module].replace(seed.old, seed.new))
    errors = prove(tmp_path, copies)
    missed: list[str] = []
    for number, seed in enumerate(seeds):
        found = unexpected([error for error in errors if error.module == f"seed_{number}"], seed.module)
        name = function_around(sources[seed.module], seed.old)
        (place,) = (node for node in functions(copies[f"seed_{number}"]) if node.name == name)
        if not any(place.lineno <= error.line <= (place.end_lineno or 0) for error in found):
            missed.append(f"{seed.module}, {seed.kind}: {seed.new!r}: {found or 'nothing'}")
    assert not missed, "\n".join(missed)


def test_every_kernel_has_seeds_and_every_kind_of_bug_is_there() -> None:
    seeds = read_seeds()
    assert {seed.module for seed in seeds} == set(kernel_sources()) - WITHOUT_SEEDS
    assert {seed.kind for seed in seeds} == set(KINDS)


def broken_promises(module: str, source: str) -> Iterator[tuple[str, str, str]]:
    """Copies of a kernel in which one dimension of one signature is another: function, what was broken, source."""
    for function in functions(source):
        if function.name == "forward":  # of an autograd function, whose caller is in OPEN
            continue
        name = f"{module}.{function.name}"
        for number, (node, array, dims) in enumerate([] if function.returns is None else shapes(function.returns)):
            yield name, f"result {number}", replaced(source, node, array, f"{dims} elsewhere")
        for parameter in parameters(function):
            for node, array, dims in [] if parameter.annotation is None else shapes(parameter.annotation):
                other = " ".join(["elsewhere", *dims.split()[1:]])
                yield name, parameter.arg, replaced(source, node, array, other)


def replaced(source: str, node: ast.Subscript, array: str, dims: str) -> str:
    edits = Edits(source)
    edits.replace(node, f'{ast.unparse(node.value)}[{array}, "{dims}"]')
    return declared(edits.apply())


def test_every_dimension_of_a_signature_is_held(tmp_path: Path) -> None:
    sources = kernel_sources()
    copies = {name: declared(text) for name, text in sources.items()}
    broken: dict[str, tuple[str, str]] = {}
    for module, source in sources.items():
        for function, what, copy in broken_promises(module, source):
            broken[f"broken_{len(broken)}"] = function, what
            copies[f"broken_{len(broken) - 1}"] = copy
    errors = prove(tmp_path, copies)
    unseen: dict[str, set[str]] = {}
    for copy, (function, what) in broken.items():
        module = function.split(".")[0]
        if not unexpected([error for error in errors if error.module == copy], module):
            unseen.setdefault(function, set()).add(what)
    assert len(broken) > 250
    assert unseen == {function: set(reasons) for function, reasons in OPEN.items()}
