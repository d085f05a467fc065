"""The examples in the documentation run as printed, each page from top to bottom."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["contract.md", "extending.md"])
def test_the_examples_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), vars(module))
