"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollout_contract.check import check
from rollout_contract.check.report import FORMATS
from rollout_contract.check.rules import SUMMARIES

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
IMPORTS = """from __future__ import annotations

from rollout_contract import PolicyBatch
from rollout_contract.losses.inputs import read
from torch import Tensor

"""


def test_the_table_of_rules_is_complete_and_literal() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert dict(rows) == dict(SUMMARIES)


def test_the_example_gives_the_report_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
    module = tmp_path / "mytrainer" / "losses.py"
    module.parent.mkdir()
    module.write_text(IMPORTS + code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = FORMATS["text"](check("mytrainer.losses"))
    assert re.sub(r", \d+\.\d s$", "", text.rstrip()) == shown.rstrip()
