"""Levels and policies: by code, for a block, from the environment; unknown ones are errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rollout_contract import configure, settings
from rollout_contract import settings as settings_function
from rollout_contract.configuration import Settings, _from_environment, current_settings
from rollout_contract.errors import LiveGraphError, MaskError, MetadataError, NonFiniteError, ShapeError
from tests.schema.batches import ADVANTAGES, NAN, OLD, policy_batch


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = current_settings().model_dump()
    yield
    configure(**before)


def test_defaults() -> None:
    assert current_settings() == Settings(level="auto", live_inputs="cut", missing="refuse", half_precision="refuse")


@pytest.mark.parametrize(
    "change",
    [
        {"level": "strict"},
        {"level": ""},
        {"level": None},
        {"level": True},
        {"live_inputs": "ignore"},
        {"missing": "drop"},
        {"half_precision": "keep"},
        {"levels": "off"},
    ],
    ids=str,
)
def test_unknown_names_and_values_are_errors(change: Any) -> None:
    with pytest.raises(ValidationError):
        configure(**change)
    with pytest.raises(ValidationError), settings(**change):
        pass
    assert current_settings() == Settings()


# -- levels ---------------------------------------------------------------------------------------------------------


def build_shape() -> Any:
    return policy_batch(advantages=torch.zeros(2))


def build_value() -> Any:
    return policy_batch(advantages=torch.tensor([NAN, *ADVANTAGES[1:]]))


def build_mask() -> Any:
    return policy_batch(loss_mask=torch.tensor([1, 1, 1, 0, 2]))


def test_what_each_level_looks_at() -> None:
    looked: dict[str, list[str]] = {}
    for level in ("off", "structure", "values", "auto"):
        found = []
        for build, kind in ((build_shape, ShapeError), (build_value, NonFiniteError), (build_mask, MaskError)):
            with settings(level=level):
                try:
                    build()
                except kind as error:
                    found.append(error.rule)
        looked[level] = found
    everything = ["shape", "value", "mask"]
    assert looked == {"off": [], "structure": ["shape"], "values": everything, "auto": everything}


def test_auto_depends_on_the_device() -> None:
    assert Settings().level_on(torch.device("cpu")) == "values"
    for device in ("cuda", "meta", "mps"):
        assert Settings().level_on(torch.device(device)) == "structure"
    assert Settings(level="values").level_on(torch.device("cuda")) == "values"


def test_off_still_repairs() -> None:
    with settings(level="off"):
        step = policy_batch(
            loss_mask=[[1, 1], [1, 0, 1]],
            old_log_probs=torch.tensor(OLD, requires_grad=True) * 1.0,
            advantages=torch.ones(1).expand(5),
        )
    assert step.loss_mask.dtype == torch.bool
    assert not step.old_log_probs.requires_grad
    assert step.advantages.stride() == (1,)


def test_off_skips_the_seal_and_verify_does_not() -> None:
    step = policy_batch()
    step.advantages.zero_()
    with settings(level="off"):
        step.weighted("token-mean")
        with pytest.raises(ValueError, match="advantages"):
            step.verify()


# -- where they hold ------------------------------------------------------------------------------------------------


def test_blocks_nest_and_end() -> None:
    configure(level="structure")
    with settings(level="off") as outer:
        assert outer.level == "off"
        with settings(missing="mask_out"):
            assert (current_settings().level, current_settings().missing) == ("off", "mask_out")
        assert current_settings().missing == "refuse"
        configure(live_inputs="warn")
        assert current_settings().live_inputs == "cut"
    assert (current_settings().level, current_settings().live_inputs) == ("structure", "warn")


def test_a_block_ends_with_an_error_too() -> None:
    with pytest.raises(RuntimeError), settings(level="off"):
        raise RuntimeError
    assert current_settings().level == "auto"


def test_a_block_holds_in_its_thread_alone() -> None:
    seen: list[str] = []
    with settings(level="off"):
        thread = threading.Thread(target=lambda: seen.append(current_settings().level))
        thread.start()
        thread.join()
    assert seen == ["auto"]
    configure(level="structure")
    thread = threading.Thread(target=lambda: seen.append(current_settings().level))
    thread.start()
    thread.join()
    assert seen == ["auto", "structure"]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        current_settings().level = "off"  # type: ignore[misc]


def test_live_inputs_for_the_whole_process() -> None:
    configure(live_inputs="refuse")
    with pytest.raises(LiveGraphError):
        policy_batch(advantages=torch.tensor(ADVANTAGES, requires_grad=True))
    with settings_function(live_inputs="cut"):
        policy_batch(advantages=torch.tensor(ADVANTAGES, requires_grad=True))


# -- the environment ------------------------------------------------------------------------------------------------


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _from_environment() == Settings()
    monkeypatch.setenv("ROLLOUT_CONTRACT_LEVEL", "structure")
    monkeypatch.setenv("ROLLOUT_CONTRACT_LIVE_INPUTS", "refuse")
    assert _from_environment() == Settings(level="structure", live_inputs="refuse")


@pytest.mark.parametrize("value", ["strict", "", "OFF", "1"])
def test_an_unknown_value_names_the_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ROLLOUT_CONTRACT_LEVEL", value)
    with pytest.raises(MetadataError) as caught:
        _from_environment()
    assert str(caught.value) == (
        "The environment breaks its contract:\n\n"
        "  ROLLOUT_CONTRACT_LEVEL [metadata]\n"
        "    expected  'off', 'structure', 'values' or 'auto'\n"
        f"    found     {value!r}"
    )


PROGRAM = """
import importlib, os
from rollout_contract import settings as _
from rollout_contract.errors import MetadataError
module = importlib.import_module("rollout_contract.configuration")
print(module.current_settings().level)
os.environ["ROLLOUT_CONTRACT_LEVEL"] = "strict"
try:
    importlib.reload(module)
except MetadataError as error:
    print(error.field)
"""


def test_a_process_reads_them_when_it_imports() -> None:
    environment = os.environ | {"ROLLOUT_CONTRACT_LEVEL": "structure"}
    made = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.splitlines() == ["structure", "ROLLOUT_CONTRACT_LEVEL"]
