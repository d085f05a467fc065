"""The panels of the report: which metric, in which unit, and what it says."""

from __future__ import annotations

from dataclasses import dataclass

from demo_support.results import Results

POLICY = "#2457c5"
STUDENT = "#0b7a6b"


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    value: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One curve over steps."""

    title: str
    unit: str
    explanation: str
    values: list[float]
    color: str
    percent: bool = False
    levels: tuple[Level, ...] = ()
    bounds: tuple[float | None, float | None] = (None, None)

    @property
    def last(self) -> str:
        return self.show(self.smooth[-1])

    @property
    def smooth(self) -> list[float]:
        """Exponential moving average, started at the first value."""
        averaged = self.values[:1]
        for value in self.values[1:]:
            averaged.append(0.8 * averaged[-1] + 0.2 * value)
        return averaged

    def show(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.2g}"


def grpo_panels(results: Results) -> list[Panel]:
    def curve(name: str) -> list[float]:
        return [step[name] for step in results.grpo]

    return [
        Panel(
            "Reward",
            "exactly right answers",
            "Share of the step's samples that a checker accepts. Dashed: the warm start on held-out prompts.",
            curve("reward"),
            POLICY,
            percent=True,
            levels=(Level(results.policy_before, "warm start"),),
            bounds=(0.0, 1.0),
        ),
        Panel(
            "KL to the warm start",
            "nats per token",
            "How far the policy has moved from its reference (mean log-ratio). The loss charges a little for it.",
            curve("kl_k1"),
            POLICY,
        ),
        Panel(
            "Mismatch of sampler and trainer",
            "mean |difference|, nats",
            "Log-probs of the same tokens: bfloat16 copy of older weights against the trainer. It falls at each sync.",
            curve("abs_diff_mean"),
            POLICY,
            bounds=(0.0, None),
        ),
        Panel(
            "Effective sample size",
            "share of the samples",
            "What the importance weights exp(old - rollout) leave of the batch. 100%: sampler and trainer agree.",
            curve("ess"),
            POLICY,
            percent=True,
            bounds=(None, 1.0),
        ),
        Panel(
            "Clip fraction",
            "trained tokens",
            "Tokens whose ratio left the clip range, so that their gradient stopped. In a first pass the ratio is 1.",
            curve("clip_fraction"),
            POLICY,
            percent=True,
            bounds=(0.0, None),
        ),
        Panel(
            "Entropy",
            "nats per token",
            "How undecided the policy is. It drops the habit of swapping digits, and little else is left to chance.",
            curve("entropy"),
            POLICY,
            bounds=(0.0, None),
        ),
    ]


def distillation_panels(results: Results) -> list[Panel]:
    def curve(name: str) -> list[float]:
        return [step[name] for step in results.distillation]

    return [
        Panel(
            "Reward of the student",
            "exactly right answers",
            "The student never sees a reward, only its teacher's log-probs. Dashed: the teacher on held-out prompts.",
            curve("reward"),
            STUDENT,
            percent=True,
            levels=(Level(results.policy_after, "teacher"),),
            bounds=(0.0, 1.0),
        ),
        Panel(
            "Reverse KL to the teacher",
            "nats per token",
            "Mean of student minus teacher log-probs on the student's own samples: what distillation brings down.",
            curve("reverse_kl"),
            STUDENT,
            bounds=(0.0, None),
        ),
        Panel(
            "Effective sample size of the student",
            "share of the samples",
            "The student changes faster than the policy did, so its sampler's older weights matter more.",
            curve("ess"),
            STUDENT,
            percent=True,
            bounds=(None, 1.0),
        ),
    ]
