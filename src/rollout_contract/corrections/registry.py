"""Every correction by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollout_contract.corrections.icepop import IcePop
from rollout_contract.corrections.m2po import M2PO
from rollout_contract.corrections.normalize import Normalize
from rollout_contract.corrections.reject import Reject
from rollout_contract.corrections.rule import CorrectionRule
from rollout_contract.corrections.truncate import Truncate

_ALL: tuple[type[CorrectionRule], ...] = (Truncate, IcePop, Reject, M2PO, Normalize)

CORRECTIONS: Mapping[str, type[CorrectionRule]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""Name -> class, in the order of the documentation."""
