"""Every number of the demo, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DemoConfig:
    """The settings of a run; the defaults take about a minute and a half of one core.

    Attributes:
        seed: of the weights, the prompts and the sampler.
        shortest, longest: digits in a prompt.
        evaluation_prompts: prompts that no training step sees, for the rewards in the table.
        policy_width, policy_layers, student_width, student_layers: sizes of the two transformers.
        sloppiness: share of the demonstrations in which two neighbours are swapped.
        warm_start_steps, student_warm_start_steps, warm_start_batch, warm_start_rate: the supervised start.
        grpo_steps, samples_per_step, samples_per_prompt: GRPO; the samples of one prompt are a group.
        epochs: passes over each step's batch, with one update each.
        sync_every: steps between two syncs of the sampler's weights.
        policy_rate: learning rate of GRPO.
        kl_coefficient: of the KL to the policy after the warm start.
        distill_steps, student_rate: on-policy distillation.
        micro_batch_tokens: budget of a micro-batch, prompts and responses together.
        rate_rises_over: updates until the full learning rate, in GRPO and distillation.
        max_gradient_norm: gradients are clipped to it.
    """

    seed: int = 0
    shortest: int = 5
    longest: int = 9
    evaluation_prompts: int = 512
    policy_width: int = 64
    policy_layers: int = 2
    student_width: int = 32
    student_layers: int = 2
    sloppiness: float = 0.8
    warm_start_steps: int = 500
    student_warm_start_steps: int = 400
    warm_start_batch: int = 128
    warm_start_rate: float = 2e-3
    grpo_steps: int = 100
    samples_per_step: int = 256
    samples_per_prompt: int = 8
    epochs: int = 2
    sync_every: int = 2
    policy_rate: float = 3e-4
    kl_coefficient: float = 0.005
    distill_steps: int = 100
    student_rate: float = 1e-3
    micro_batch_tokens: int = 2_500
    rate_rises_over: int = 20
    max_gradient_norm: float = 1.0

    def shortened(self, steps: int) -> DemoConfig:
        """The same run with at most ``steps`` steps in each phase, to see that it goes through."""
        return replace(
            self,
            evaluation_prompts=64,
            samples_per_step=64,
            warm_start_steps=min(steps, self.warm_start_steps),
            student_warm_start_steps=min(steps, self.student_warm_start_steps),
            grpo_steps=min(steps, self.grpo_steps),
            distill_steps=min(steps, self.distill_steps),
        )
