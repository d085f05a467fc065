"""Nothing here may reach for a network, and what TRL and transformers deprecate is not ours to mend."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_VERBOSITY="error")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # about ``rollout_func``

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:transformers|trl"))


@pytest.fixture(scope="session")
def reference_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where TRL finds a reference model that differs from the policy."""
    from tests.integrations.trl.world import make_model

    path = tmp_path_factory.mktemp("reference")
    make_model(seed=1).save_pretrained(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def quick_collection() -> Iterator[None]:
    """Every ``train()`` collects garbage; without this it walks through all of transformers, for half a second."""
    from tests.integrations.trl import world

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    del world
