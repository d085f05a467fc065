"""What a run leaves behind for the table, the plot and the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from demo_support.broken_batches import BrokenBatch
from demo_support.config import DemoConfig

Step = dict[str, float]
"""Metrics of one step, by name, with ``reward``: the share of the step's samples whose answer was right."""


@dataclass(frozen=True)
class Answers:
    """How each model answers one held-out prompt."""

    prompt: str
    right: str
    warm_start: str
    trained: str
    student: str


@dataclass
class Results:
    """Rewards are shares of exactly right answers on held-out prompts, sampled at temperature 1."""

    config: DemoConfig
    policy_parameters: int
    student_parameters: int
    policy_before: float = 0.0
    policy_after: float = 0.0
    student_before: float = 0.0
    student_after: float = 0.0
    grpo: list[Step] = field(default_factory=list)
    distillation: list[Step] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    broken: list[BrokenBatch] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> list[tuple[str, str, str]]:
        """(quantity, before, after): rewards on held-out prompts, the rest as means over the first and last tenth."""
        policy, student = (self.policy_before, self.policy_after), (self.student_before, self.student_after)
        return [
            ("Reward of the policy, held-out prompts", f"{policy[0]:.1%}", f"{policy[1]:.1%}"),
            _ends("KL to the warm start, nats per token", self.grpo, "kl_k1", ".4f"),
            _ends("Mismatch of sampler and trainer, nats", self.grpo, "abs_diff_mean", ".4f"),
            _ends("Effective sample size", self.grpo, "ess", ".2%"),
            _ends("Clip fraction", self.grpo, "clip_fraction", ".2%"),
            _ends("Entropy, nats per token", self.grpo, "entropy", ".3f"),
            ("Reward of the student, held-out prompts", f"{student[0]:.1%}", f"{student[1]:.1%}"),
            _ends("Reverse KL to the teacher, nats per token", self.distillation, "reverse_kl", ".4f"),
        ]


def _ends(label: str, steps: list[Step], name: str, pattern: str) -> tuple[str, str, str]:
    tenth = max(len(steps) // 10, 1)
    values = [step[name] for step in steps]
    first, last = sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth
    return label, format(first, pattern), format(last, pattern)
