"""The options of miles' ``mis.compute_mis_weights_with_cp``: masked importance sampling and rejection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import BaseModel, Field, PositiveFloat

from rollout_contract.corrections import CorrectionRule, Normalize, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.presets.options import contradiction

_REJECT_LEVEL: dict[str, Literal["token", "sequence-sum", "sequence-mean"]] = {
    "token": "token",
    "sequence": "sequence-sum",
    "geometric": "sequence-mean",
}


class MisOptions(BaseModel):
    """Weights by level and mode, a second rejection (``rs``), and a veto."""

    mis_names: ClassVar[tuple[str, ...]] = (
        "tis_mode", "tis_level", "tis_lower_bound", "tis_upper_bound", "tis_batch_normalize", "use_rs", "rs_level",
        "rs_lower_bound", "rs_upper_bound", "rs_veto_threshold",
    )  # fmt: skip

    tis_mode: Literal["truncate", "mask", "clip"] = "truncate"
    tis_level: Literal["token", "sequence", "geometric"] = "token"
    tis_lower_bound: PositiveFloat | None = 0.5
    tis_upper_bound: PositiveFloat = 2.0
    tis_batch_normalize: bool = False
    use_rs: bool = False
    rs_level: Literal["token", "sequence", "geometric"] = "token"
    rs_lower_bound: PositiveFloat | None = None
    rs_upper_bound: PositiveFloat | None = None
    rs_veto_threshold: float | None = Field(1e-4, gt=0.0)

    @property
    def mis_given(self) -> set[str]:
        return self.model_fields_set & set(self.mis_names)

    @property
    def mis_is_given(self) -> bool:
        return bool(self.mis_given)

    @property
    def mis_rejects_tokens(self) -> bool:
        return (self.tis_mode, self.tis_level) == ("mask", "token") or (self.use_rs and self.rs_level == "token")

    @property
    def _tis_low(self) -> float:
        return 1.0 / self.tis_upper_bound if self.tis_lower_bound is None else self.tis_lower_bound

    def mis_refusals(self) -> Iterator[Violation]:
        """What the function raises for."""
        if self.tis_batch_normalize and self.tis_level == "geometric":
            yield contradiction("tis_batch_normalize", True, "False for tis_level=geometric")
        if self.tis_mode != "truncate" and self._tis_low >= self.tis_upper_bound:
            yield contradiction("tis_lower_bound", self._tis_low, f"less than tis_upper_bound={self.tis_upper_bound}")

    def mis_correction(self) -> CorrectionRule:
        """Mode ``mask`` rejects and keeps the raw weight; the others bound it."""
        bounds = {"truncate": (None, self.tis_upper_bound), "clip": (self._tis_low, self.tis_upper_bound)}
        low, high = bounds.get(self.tis_mode, (None, None))
        rule: CorrectionRule = Truncate(low=low, high=high, level=self.tis_level)
        if self.tis_batch_normalize:
            rule = Normalize(rule=rule, per="token" if self.tis_level == "token" else "sequence")
        for rejection in self._rejections():
            rule = rule & rejection
        return rule

    def _rejections(self) -> Iterator[Reject]:
        if self.tis_mode == "mask":
            yield Reject(level=_REJECT_LEVEL[self.tis_level], low=self._tis_low, high=self.tis_upper_bound)
        if not self.use_rs:
            return
        low = self._tis_low if self.rs_lower_bound is None else self.rs_lower_bound
        high = self.tis_upper_bound if self.rs_upper_bound is None else self.rs_upper_bound
        if self.tis_mode != "mask" or (self.rs_level, low, high) != (
            self.tis_level,
            self._tis_low,
            self.tis_upper_bound,
        ):
            yield Reject(level=_REJECT_LEVEL[self.rs_level], low=low, high=high)
        if self.rs_veto_threshold is not None:
            yield Reject(level="sequence-every", low=self.rs_veto_threshold, log_ratio_bound=None)
