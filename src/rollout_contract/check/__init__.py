"""Checks of user code in CI, on tiny synthetic batches: shapes, gradient flow, masks, splits, devices.

The command is ``rollout-contract check``; :func:`check` is the same as a function.
"""

from rollout_contract.check.declare import loss as loss
from rollout_contract.check.findings import Fault as Fault
from rollout_contract.check.findings import Place as Place
from rollout_contract.check.findings import Report as Report
from rollout_contract.check.findings import Unchecked as Unchecked
from rollout_contract.check.run import check as check
from rollout_contract.check.trace import gradient_sources as gradient_sources
