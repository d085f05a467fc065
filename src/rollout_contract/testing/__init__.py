"""For tests of code that uses this library: strategies, contracts as assertions, and tracers of graphs.

It needs the extra ``testing`` (pytest and hypothesis). The pytest plugin comes with the library: docs/testing.md.
"""

from rollout_contract.check.trace import gradient_sources as gradient_sources
from rollout_contract.testing.kit import assert_correction_contract as assert_correction_contract
from rollout_contract.testing.kit import assert_loss_contract as assert_loss_contract
from rollout_contract.testing.silent_cuts import SilentCut as SilentCut
from rollout_contract.testing.silent_cuts import watch_cuts as watch_cuts
from rollout_contract.testing.strategies import BrokenBatch as BrokenBatch
from rollout_contract.testing.strategies import batches as batches
from rollout_contract.testing.strategies import broken_batches as broken_batches
