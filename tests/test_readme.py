"""The README is executed: its example runs as printed, and the printed errors are the real ones."""

from __future__ import annotations

import pytest
import torch

from rollout_contract import ContractError
from tests.readme import Block, blocks, run_example


def test_the_example_runs_as_printed_and_trains() -> None:
    names = run_example()
    assert torch.isfinite(names["logits"].grad).all()
    assert names["logits"].grad.abs().sum() > 0


def test_the_example_is_short() -> None:
    assert len([line for line in blocks()[0].text.splitlines() if line.strip()]) <= 25


def test_the_printed_batch_is_the_real_one() -> None:
    assert str(run_example()["micro"]) == blocks()[1].text.rstrip("\n")


def _mistakes() -> list[tuple[Block, Block]]:
    rest = blocks()[2:]
    return list(zip(rest[::2], rest[1::2], strict=True))


@pytest.mark.parametrize(("code", "printed"), _mistakes())
def test_the_printed_errors_are_the_real_ones(code: Block, printed: Block) -> None:
    with pytest.raises(ContractError) as caught:
        exec(compile(code.text, "README.md", "exec", dont_inherit=True), run_example())
    assert str(caught.value) == printed.text.rstrip("\n")
