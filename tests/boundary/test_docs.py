"""The page and the example say what is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from rollout_contract.boundary import MILES, PersistedBatch, guard
from rollout_contract.errors import LengthError
from tests.boundary.dicts import miles_dict, rows

ROOT = Path(__file__).parents[2]


def test_the_printed_error_is_the_real_one() -> None:
    page = (ROOT / "docs" / "boundary.md").read_text()
    printed = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    with pytest.raises(LengthError) as caught:
        guard(miles_dict(log_probs=[rows()[0], rows()[1][:2]]), PersistedBatch, MILES)
    assert [str(caught.value)] == printed


def test_the_example_shows_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "guard_a_dict.py"), run_name="__main__")
    gradients = re.findall(r"(\w[\w ]+): +gradient (\[.*\])", capsys.readouterr().out)
    assert gradients == [
        ("nothing done", "[0.0, 0.0, 0.0]"),
        ("after guard", "[-1.0, -1.0, 1.0]"),
        ("called directly", "[-1.0, -1.0, 1.0]"),
    ]
