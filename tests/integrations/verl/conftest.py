"""verl lives in an environment of its own (``make verl-test``); elsewhere only what needs no verl is collected."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS_VERL = ["test_same_values.py", "test_bypass.py", "test_registry.py", "test_ppo_loss.py", "test_tensor_dict.py"]

collect_ignore = [] if find_spec("verl") else NEEDS_VERL
