"""The generated pages are up to date, and what the pages on presets and disagreements say is there."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rollout_contract import aggregation, corrections, kl, objectives, presets
from rollout_contract.advantages import ESTIMATORS, Whitening
from rollout_contract.distillation.registry import DISTRIBUTION_TERMS
from rollout_contract.losses.value import CriticError
from rollout_contract.presets import preset
from tests.presets.test_known_as import Entry, options_of, without_remarks

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["objectives.md", "presets.md", "disagreements.md"]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = load()

# -- generated pages ---------------------------------------------------------------------------------------------------


def test_the_generated_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_found_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    edited = (DOCS / "presets.md").read_text().replace("`loss_fn`", "`loss_fun`") + "more"
    (tmp_path / "presets.md").write_text(edited)
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "objectives.md is stale: run python docs/generate.py",
        "presets.md is stale: run python docs/generate.py",
    ]
    assert (tmp_path / "presets.md").read_text() == edited
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    for page in ("objectives.md", "presets.md"):
        assert (tmp_path / page).read_text() == (DOCS / page).read_text()


def test_every_entry_is_on_the_page() -> None:
    titles = re.findall(r"^### `([\w-]+)`$", (DOCS / "objectives.md").read_text(), re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert {kind.__name__ for kind in objectives.OBJECTIVES.values()} <= set(titles)
    assert set(ESTIMATORS) <= set(titles)
    assert {kind.__name__ for kind in DISTRIBUTION_TERMS.values()} <= set(titles)
    assert not generate.missing_modes()


AGGREGATIONS = [
    Entry("aggregation", mode, trainer, text)
    for mode, facts in generate.AGGREGATIONS.items()
    for trainer, text in facts.known_as.items()
]


@pytest.mark.parametrize("entry", AGGREGATIONS, ids=lambda entry: f"{entry.name}-{entry.trainer}")
def test_an_aggregation_is_where_the_page_says(entry: Entry) -> None:
    if not without_remarks(entry.text):
        trainer = entry.trainer.lower()
        assert preset(trainer).aggregation.mode == entry.name
    for trainer, options in options_of(entry) if without_remarks(entry.text) else ():
        assert preset(trainer, options).aggregation.mode == entry.name, (trainer, options)


# -- pages by hand -----------------------------------------------------------------------------------------------------


def test_the_examples_on_presets_run_and_print_what_is_printed() -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / "presets.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    printed = ""
    for language, text in blocks:
        if language == "text":
            assert printed == text
            continue
        with redirect_stdout(StringIO()) as output:
            exec(compile(text, "presets.md", "exec", dont_inherit=True), names)
        printed = output.getvalue()
    assert names["live"].grad is not None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        if name.startswith("https:"):
            continue
        assert (DOCS / name).exists() or not name, target
        where = (DOCS / name).read_text() if name else text
        headings = {
            generate.anchor(re.sub("[`]", "", title)) for title in re.findall(r"^#+ (.*)$", where, re.MULTILINE)
        }
        assert not anchor or anchor in headings, target


LIBRARY: dict[str, Any] = {
    **{name: getattr(module, name) for module in (objectives, corrections, kl, presets) for name in dir(module)},
    **{kind.__name__: kind for kind in DISTRIBUTION_TERMS.values()},
    **{name: inspect.unwrap(entry.function) for name, entry in ESTIMATORS.items()},
    "Aggregation": aggregation.Aggregation,
    "CriticError": CriticError,
    "Whitening": Whitening,
}


def calls(text: str) -> Iterator[ast.Call]:
    """What stands in code and is a call of something in the library."""
    for code in re.findall(r"`([^`\n]+)`", text):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LIBRARY:
                yield node


def default(thing: Any, option: str) -> Any:
    if inspect.isclass(thing):
        return thing.model_fields[option].get_default()
    return inspect.signature(thing).parameters[option].default


def test_the_options_where_trainers_disagree_exist() -> None:
    found = list(calls((DOCS / "disagreements.md").read_text()))
    assert len(found) > 20
    for call in found:
        for keyword in call.keywords:
            assert keyword.arg is not None
            default(LIBRARY[ast.unparse(call.func)], keyword.arg)


def test_an_option_at_the_start_of_a_paragraph_is_written_with_its_default() -> None:
    starts = "\n".join(re.findall(r"^`[^`\n]+`", (DOCS / "disagreements.md").read_text(), re.MULTILINE))
    checked = 0
    for call in calls(starts):
        for keyword in call.keywords:
            thing, option = LIBRARY[ast.unparse(call.func)], str(keyword.arg)
            if isinstance(keyword.value, ast.Constant):
                assert default(thing, option) == keyword.value.value, ast.unparse(call)
                checked += 1
    assert checked > 15


def test_names_in_code_exist() -> None:
    words = set(re.findall(r"`([A-Z][a-zA-Z0-9]+)`", (DOCS / "disagreements.md").read_text()))
    assert words <= {*LIBRARY, "None"}
