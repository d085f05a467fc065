"""Whatever would change a batch after it was validated. Each line marked E must be refused. Never executed."""

from __future__ import annotations

from tests.typing.values import Step, entropy, everything, fixed, policy, scores, step, topk, trainable, value
from torch import Tensor

from rollout_contract import Layout, Loss
from rollout_contract.corrections import Correction
from rollout_contract.metrics import Metric, Metrics


def fields(x: Tensor) -> None:
    step.advantages = x  # E
    step.advantages = fixed  # E: not even one without a graph
    step.old_log_probs = x  # E
    step.old_log_probs = fixed  # E
    step.log_probs = trainable  # E: bind() makes a new batch
    policy.loss_mask = x  # E
    policy.response_lengths = [1, 2]  # E
    policy.group_ids = (0, 0)  # E
    policy.row_ids = (0, 0)  # E
    policy.sampling = {}  # E
    policy.loss_weights = x  # E: weighted() makes a new batch
    policy.correction_weights = fixed  # E: corrected() makes a new batch
    everything.ref_log_probs = x  # E
    everything.rollout_log_probs = fixed  # E
    everything.teacher_log_probs = x  # E
    everything.rewards = x  # E
    value.values = x  # E
    value.returns = fixed  # E
    value.value_predictions = x  # E
    entropy.entropy = trainable  # E
    topk.topk_ids = x  # E
    step.advantages += 1.0  # E: that assigns, too
    step.advantages *= fixed  # E
    step.layout = Layout([1])  # E
    step.device = "cpu"  # E
    step.reward = x  # E: nor are new ones added
    for step.advantages in [fixed]:  # E
        pass
    setattr(step, "advantages", x)  # noqa: B010  (at run time only)


def the_rest(loss: Loss, correction: Correction, metrics: Metrics, metric: Metric, x: Tensor) -> None:
    loss.value = x  # E
    loss.metrics = Metrics()  # E
    correction.weights = x  # E
    correction.mask = x  # E
    correction.metrics = metrics  # E
    metric.parts = x  # E
    metrics["ratio"] = metric  # E
    step[0] = Step(response_lengths=[1], loss_mask=x, old_log_probs=scores, advantages=scores)  # E
    del step[0]  # E
