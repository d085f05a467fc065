"""The pytest plugin: options for a whole run, and a fixture that finds silently cut graphs.

It lies outside the package, and imports nothing of it before an option or the fixture asks for that: pytest loads it in
every run, and a package that is to be instrumented must not be imported earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rollout_contract.testing.silent_cuts import SilentCut

_LEVELS = ("off", "structure", "values", "auto")
_CUTS: pytest.StashKey[list[SilentCut]] = pytest.StashKey()
_RESTORE = pytest.StashKey[Any]()
_HOOK = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollout_contract")
    group.addoption(
        "--contract-level",
        choices=_LEVELS,
        help="level of the checks of rollout_contract for the whole run (ini: contract_level)",
    )
    group.addoption(
        "--contract-instrument",
        metavar="PACKAGES",
        help="packages, between commas, whose functions are checked at run time against their jaxtyping annotations, "
        "with beartype (ini: contract_instrument)",
    )
    parser.addini("contract_level", "level of the checks of rollout_contract for the whole run")
    parser.addini("contract_instrument", "packages to check at run time with jaxtyping and beartype", type="args")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Instrument before any conftest can import what shall be instrumented."""
    packages = _packages(early_config)
    if not packages:
        return
    early = sorted(name for name in packages if name in sys.modules)
    if early:
        raise pytest.UsageError(f"--contract-instrument comes too late for {', '.join(early)}: already imported")
    from jaxtyping import install_import_hook

    early_config.stash[_HOOK] = install_import_hook(packages, "beartype.beartype")


def _packages(config: pytest.Config) -> list[str]:
    given = getattr(config.known_args_namespace, "contract_instrument", None)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    return list(config.getini("contract_instrument"))


def pytest_configure(config: pytest.Config) -> None:
    level: Any = config.getoption("--contract-level") or config.getini("contract_level")
    if not level:
        return
    if level not in _LEVELS:
        raise pytest.UsageError(f"contract_level: {level!r} is none of {', '.join(_LEVELS)}")
    from rollout_contract.configuration import configure, current_settings

    config.stash[_RESTORE] = current_settings().level
    configure(level=level)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _RESTORE in config.stash:
        from rollout_contract.configuration import configure

        configure(level=config.stash[_RESTORE])
    if _HOOK in config.stash:
        config.stash[_HOOK].uninstall()


@pytest.fixture
def no_silent_cuts(request: pytest.FixtureRequest) -> Generator[list[SilentCut]]:
    """Fails the test if a live graph is cut without a word anywhere in it, and says who built the batch.

    For a whole module: ``pytestmark = pytest.mark.usefixtures("no_silent_cuts")``.
    """
    from rollout_contract.testing.silent_cuts import watch_cuts

    with watch_cuts() as cuts:
        request.node.stash[_CUTS] = cuts
        yield cuts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let the test itself fail, not its teardown."""
    result = yield
    cuts = item.stash.get(_CUTS, None)
    if cuts:
        pytest.fail("\n\n".join(map(str, cuts)), pytrace=False)
    return result
