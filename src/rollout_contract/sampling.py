"""How a kind of log-prob was made. Scores that were made differently do not belong into one ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollout_contract.errors import Violation
from rollout_contract.schema.plan import Plan


class Sampling(BaseModel):
    """How log-probs were computed from logits.

    Attributes:
        temperature: what the logits were divided by; above 0.
        top_p, top_k: the support over which they were renormalised; 1.0 and None mean the whole vocabulary.
        log_probs: ``processed``: of the distribution that was sampled from. ``raw``: of the model's own distribution,
            whatever the temperature.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, gt=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, gt=0)
    log_probs: Literal["processed", "raw"] = "processed"

    def __str__(self) -> str:
        support = ("" if self.top_p == 1.0 else f", top_p {self.top_p}") + (
            f", top_k {self.top_k}" if self.top_k else ""
        )
        return f"{self.log_probs} at temperature {self.temperature}{support}"


def sampling_violations(plan: Plan, values: Mapping[str, Any]) -> Iterator[Violation]:
    """Log-prob fields of one batch that were made in different ways, and names that are no log-probs."""
    declared: Mapping[str, Sampling] = values.get("sampling", {})
    first: tuple[str, Sampling] | None = None
    for name, sampling in declared.items():
        if name not in plan or not plan[name].holds_log_probs:
            yield Violation("sampling", "metadata", "names of log-prob fields of the schema", repr(name))
        elif first is None:
            first = (name, sampling)
        elif sampling != first[1]:
            expected = f"{first[1]}, as {first[0]}"
            hint = "score with the same temperature and support on both sides; dividing log-probs repairs nothing"
            yield Violation(name, "metadata", expected, str(sampling), hint)
