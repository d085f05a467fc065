"""verl's ``algorithm.rollout_correction``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel

from rollout_contract.corrections import CorrectionRule, IcePop, Normalize, Reject, Truncate
from rollout_contract.errors import Violation
from rollout_contract.presets.options import contradiction, not_covered, option
from rollout_contract.presets.rules import ZeroOutside

_PATH = "algorithm.rollout_correction."
_REJECTIONS = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip


class VerlCorrection(BaseModel):
    """Importance weights (TIS or IcePop), rejection, and bypass mode."""

    rollout_is: Literal["token", "sequence"] | None = option(f"{_PATH}rollout_is", None)
    rollout_is_threshold: float | str = option(f"{_PATH}rollout_is_threshold", 2.0)
    rollout_is_batch_normalize: bool = option(f"{_PATH}rollout_is_batch_normalize", False)
    rollout_rs: str | None = option(f"{_PATH}rollout_rs", None)
    rollout_rs_threshold: float | str | None = option(f"{_PATH}rollout_rs_threshold", None)
    bypass_mode: bool = option(f"{_PATH}bypass_mode", False)
    loss_type: Literal["ppo_clip", "reinforce"] = option(f"{_PATH}loss_type", "ppo_clip")

    @property
    def is_bypass(self) -> bool:
        return self.bypass_mode or getattr(self, "loss_mode", "") == "bypass_mode"

    def refusals(self) -> Iterator[Violation]:
        """What cannot be followed, and what verl would silently replace."""
        try:
            limits(self.rollout_is_threshold)
        except ValueError as error:
            yield Violation("rollout_is_threshold", "value", f"{error} (IcePop)", repr(self.rollout_is_threshold))
        yield from self._rejection_refusals()
        if self.is_bypass:
            yield from self._bypass_refusals()

    def _rejection_refusals(self) -> Iterator[Violation]:
        if self.rollout_rs is None:
            return
        wrong = [option for option in names(self.rollout_rs) if option not in _REJECTIONS]
        if wrong:
            yield Violation("rollout_rs", "value", f"a list of {' | '.join(_REJECTIONS)}", ", ".join(wrong))
        elif self.rollout_rs_threshold is None:
            yield contradiction("rollout_rs_threshold", None, "a threshold for each option of rollout_rs")
        else:
            try:
                self._rejections()
            except ValueError as error:
                yield Violation("rollout_rs_threshold", "value", str(error), repr(self.rollout_rs_threshold))

    def _bypass_refusals(self) -> Iterator[Violation]:
        mode = getattr(self, "loss_mode", "vanilla")
        if mode not in ("vanilla", "bypass_mode"):
            expected = "loss_mode=vanilla: bypass mode replaces any other loss by PPO clip or REINFORCE (loss_type)"
            yield contradiction("loss_mode", mode, expected)
        if self.loss_type == "ppo_clip" and self.rollout_rs is not None:
            why = "in bypass mode verl rejects by the live policy, whose ratio PPO clips against the sampler as well"
            yield not_covered("rollout_rs", self.rollout_rs, why, "reject in decoupled mode (bypass_mode=false)")
        if self.loss_type == "reinforce" and self.rollout_is is not None:
            if isinstance(self.rollout_is_threshold, str) and "_" in self.rollout_is_threshold:
                yield not_covered("rollout_is_threshold", self.rollout_is_threshold, "IcePop by the live policy")
            if self.rollout_is_batch_normalize:
                yield not_covered("rollout_is_batch_normalize", True, "a mean over live weights of a micro-batch")

    def correction(self) -> CorrectionRule | None:
        """Weights and rejections; in bypass mode the objective has the weights itself."""
        rules = [*([] if self.is_bypass else self._weights()), *self._rejections()]
        found = rules[0] if rules else None
        for rule in rules[1:]:
            found = rule if found is None else found & rule
        return found

    def correction_notes(self) -> Iterator[str]:
        """What the recipe cannot say by itself."""
        if self.is_bypass and self.rollout_rs is not None:
            yield (
                "rejection compares the policy at the start of the step, old_log_probs, with the sampler; verl asks "
                "the live policy in every update"
            )

    def _weights(self) -> Iterator[CorrectionRule]:
        if self.rollout_is is None:
            return
        low, high = limits(self.rollout_is_threshold)
        rule: CorrectionRule
        if low is None:
            rule = Truncate(high=high, level=self.rollout_is)
        elif self.rollout_is == "token":
            rule = IcePop(low=low, high=high)
        else:
            raw = Truncate(high=None, level="sequence")
            rule = ZeroOutside(rule=raw, outside=Reject(level="sequence-sum", low=low, high=high))
        yield Normalize(rule=rule, per=self.rollout_is) if self.rollout_is_batch_normalize else rule

    def _rejections(self) -> list[CorrectionRule]:
        options = [] if self.rollout_rs is None else names(self.rollout_rs)
        given = str(self.rollout_rs_threshold).split(",")
        if len(given) not in (1, len(options)):
            raise ValueError(f"one threshold, or {len(options)}")
        return [rejection(o, t) for o, t in zip(options, given * (len(options) if len(given) == 1 else 1), strict=True)]


def names(options: str) -> list[str]:
    """A comma-separated list without duplicates."""
    return list(dict.fromkeys(option.strip() for option in options.split(",") if option.strip()))


def limits(threshold: float | str) -> tuple[float | None, float]:
    """(lower bound or None, upper bound) of ``2.0`` or ``"0.5_5.0"``."""
    parts = str(threshold).strip().split("_")
    if len(parts) > 2 or not all(map(_is_positive, parts)):
        raise ValueError('a positive number, or two as "low_high"')
    numbers = [float(part) for part in parts]
    if numbers != sorted(numbers):
        raise ValueError(f'low and high in order, as "{parts[1]}_{parts[0]}"')
    return (None if len(numbers) == 1 else numbers[0]), numbers[-1]


def _is_positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < math.inf
    except ValueError:
        return False


def rejection(option: str, threshold: str) -> Reject:
    """One option of ``rollout_rs``. Thresholds of k1 bound the ratio's inverse: k1 = rollout - old."""
    level, statistic = option.rsplit("_", 1)
    low, high = limits(threshold)
    if statistic != "k1" and low is not None:
        raise ValueError(f"one upper bound for {option}")
    if statistic == "k1":
        low, high = math.log(1 / high if low is None else low), math.log(high)
    shape = {"statistic": statistic, "level": level.replace("seq_", "sequence-")}
    return Reject.model_validate(shape | {"low": low, "high": high})
