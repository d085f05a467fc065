"""The run itself, phase by phase; it reports what it does to whoever watches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from demo_support.broken_batches import feed_broken_batches
from demo_support.config import DemoConfig
from demo_support.distill import Distillation
from demo_support.grpo import GRPO
from demo_support.policy import Policy
from demo_support.results import Answers, Results, Step
from demo_support.sampler import Rollout, Sampler
from demo_support.task import VOCABULARY, SortTask, answer, decode
from demo_support.warm_start import warm_start
from rollout_contract import Metrics

Watch = Callable[[str, int, Iterator[Step]], list[Step]]
"""Runs a phase of so many steps to its end and shows its progress: (title, steps, phase) -> the steps' metrics."""


class Learner(Protocol):
    """What trains on rollouts."""

    def step(self, rollout: Rollout) -> Metrics: ...


class Run:
    """One seeded run of the demo."""

    def __init__(self, config: DemoConfig, watch: Watch) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.watch = watch
        self.task = SortTask(config.shortest, config.longest, held_out=config.evaluation_prompts, seed=config.seed)
        self.policy = self.new_policy(config.policy_width, config.policy_layers)
        self.student = self.new_policy(config.student_width, config.student_layers)

    def new_policy(self, width: int, layers: int) -> Policy:
        return Policy(len(VOCABULARY), self.task.max_sequence_length, width=width, layers=layers)

    def results(self) -> Results:
        config, policy, student = self.config, self.policy, self.student
        results = Results(config, policy.num_parameters, student.num_parameters)

        self.watch("Warm start", config.warm_start_steps, self.warm_start(policy, config.warm_start_steps))
        before, results.policy_before = copy.deepcopy(policy), self.evaluate(policy)
        phase = self.phase(GRPO(policy, config), policy, config.grpo_steps, config.samples_per_prompt)
        results.grpo = self.watch("GRPO", config.grpo_steps, phase)
        results.policy_after = self.evaluate(policy)

        steps = config.student_warm_start_steps
        self.watch("Student's warm start", steps, self.warm_start(student, steps))
        results.student_before = self.evaluate(student)
        phase = self.phase(Distillation(student, policy, config), student, config.distill_steps, samples_per_prompt=1)
        results.distillation = self.watch("Distillation", config.distill_steps, phase)
        results.student_after = self.evaluate(student)

        results.answers = self.answers(before)
        results.broken = feed_broken_batches(policy, config)
        return results

    # -- phases ----------------------------------------------------------------------------------------------------

    def warm_start(self, policy: Policy, steps: int) -> Iterator[Step]:
        return ({"loss": loss} for loss in warm_start(policy, self.task, self.config, steps))

    def phase(self, learner: Learner, policy: Policy, steps: int, samples_per_prompt: int) -> Iterator[Step]:
        """Sample, train, repeat. The sampler gets new weights every few steps only."""
        sampler = self.sampler(policy)
        num_prompts = self.config.samples_per_step // samples_per_prompt
        for step in range(steps):
            if step % self.config.sync_every == 0:
                sampler.sync(policy)
            prompts = [prompt for prompt in self.task.prompts(num_prompts) for _ in range(samples_per_prompt)]
            rollout = sampler.sample(prompts)
            yield {"reward": rollout.mean_reward, **learner.step(rollout).compute()}

    # -- evaluation ------------------------------------------------------------------------------------------------

    def sampler(self, policy: Policy) -> Sampler:
        return Sampler(policy, max_response_length=self.task.max_response_length, seed=self.config.seed)

    def evaluate(self, policy: Policy) -> float:
        """Share of right answers on the held-out prompts."""
        return self.sampler(policy).sample(self.task.held_out).mean_reward

    def answers(self, before: Policy, count: int = 8) -> list[Answers]:
        """What each model writes, side by side."""
        prompts = self.task.held_out[:count]
        models = (before, self.policy, self.student)
        written = [[decode(r) for r in self.sampler(model).sample(prompts).responses] for model in models]
        rows = zip(prompts, *written, strict=True)
        return [Answers(decode(prompt), decode(answer(prompt)), *texts) for prompt, *texts in rows]
