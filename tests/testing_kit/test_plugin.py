"""The pytest plugin, in runs of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

BATCH = """
    import pytest
    import torch
    from rollout_contract import PolicyBatch

    def build(old):
        return PolicyBatch(response_lengths=[2], loss_mask=[1, 1], old_log_probs=old, advantages=[1.0, 2.0])

    def live():
        return torch.tensor([-1.0, -2.0], requires_grad=True) * 1.0
"""


def test_no_silent_cuts_fails_the_test_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        BATCH
        + """
    def test_cut(no_silent_cuts):
        build(live())

    def test_clean(no_silent_cuts):
        build(live().detach())

    def test_without_the_fixture():
        build(live())

    def test_fails_for_another_reason(no_silent_cuts):
        build(live())
        raise RuntimeError("another reason")

    def test_takes_note(no_silent_cuts):
        build(live())
        assert [cut.field for cut in no_silent_cuts] == ["old_log_probs"]
        no_silent_cuts.clear()
    """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "old_log_probs: a live graph was cut silently",
            "  found     a live graph (grad_fn MulBackward0)",
            "  built at  *test_no_silent_cuts_fails_the_test_itself.py:6",
            "  from      *test_no_silent_cuts_fails_the_test_itself.py:12",
            "*RuntimeError: another reason",
        ]
    )


def test_a_whole_module_can_use_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        BATCH
        + """
    pytestmark = pytest.mark.usefixtures("no_silent_cuts")

    def test_cut():
        build(live())
    """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)


LEVEL = """
    from rollout_contract.configuration import current_settings

    def test_level():
        assert current_settings().level == "structure"
"""


def test_level_by_option(pytester: pytest.Pytester) -> None:
    from rollout_contract.configuration import current_settings

    before = current_settings()
    pytester.makepyfile(LEVEL)
    pytester.runpytest_inprocess("--contract-level=structure", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert current_settings() == before


def test_level_by_ini_and_option_over_ini(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncontract_level = values")
    pytester.makepyfile(LEVEL)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)
    pytester.runpytest_inprocess("--contract-level=structure", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_wrong_level_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncontract_level = all")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*contract_level: 'all' is none of off, structure, values, auto*"])
    assert pytester.runpytest_inprocess("--contract-level=all").ret == pytest.ExitCode.USAGE_ERROR


PACKAGE = """
from jaxtyping import Float
from torch import Tensor
from rollout_contract import FixedTensor

def per_sample(values: Float[Tensor, "tokens"], rewards: Float[FixedTensor, "batch"]) -> Float[Tensor, "batch"]:
    return values
"""

USER = """
    import pytest
    import torch
    from jaxtyping import TypeCheckError
    from trainer_under_test.losses import per_sample

    def test_wrong_result():
        with pytest.raises(TypeCheckError, match="per_sample"):
            per_sample(torch.zeros(3), torch.zeros(2))

    def test_live_where_fixed_belongs():
        with pytest.raises(TypeCheckError, match="rewards"):
            per_sample(torch.zeros(2), torch.zeros(2, requires_grad=True))
"""


def test_packages_are_instrumented(pytester: pytest.Pytester) -> None:
    package = pytester.mkpydir("trainer_under_test")
    (package / "losses.py").write_text(PACKAGE)
    pytester.makeconftest("import trainer_under_test.losses")
    pytester.makepyfile(USER)
    options = ("--contract-instrument=trainer_under_test", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2)


@pytest.mark.parametrize("by", ["option", "ini"])
def test_a_package_that_is_imported_already_cannot_be_instrumented(pytester: pytest.Pytester, by: str) -> None:
    options = ["--contract-instrument=rollout_contract"] if by == "option" else []
    if by == "ini":
        pytester.makeini("[pytest]\ncontract_instrument = rollout_contract")
    result = pytester.runpytest_inprocess(*options, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*comes too late for rollout_contract: already imported*"])


def test_the_plugin_alone_imports_nothing_of_the_library(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
    import sys

    def test_imports():
        assert "pytest_rollout_contract" in sys.modules
        assert "rollout_contract" not in sys.modules
        assert "torch" not in sys.modules
    """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
