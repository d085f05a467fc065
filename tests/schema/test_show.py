"""What a batch shows of itself, pinned as text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rollout_contract import OPDBatch, PolicyBatch, RolloutBatch, settings
from rollout_contract.sampling import Sampling
from tests.schema.batches import LENGTHS, MASK, NAN, OLD, live, policy_batch


def test_repr_of_a_step() -> None:
    assert repr(policy_batch()) == (
        "PolicyBatch(2 samples, 5 tokens, cpu)\n"
        "  loss_mask      bool[5 tokens] cpu fixed\n"
        "  log_probs      unbound, trainable\n"
        "  advantages     f32[5 tokens] cpu fixed\n"
        "  old_log_probs  f32[5 tokens] cpu fixed"
    )


def test_repr_of_a_bound_part() -> None:
    step = policy_batch(
        old_log_probs=torch.tensor(OLD, dtype=torch.float64), sampling={"old_log_probs": {"temperature": 0.7}}
    )
    part = step.weighted("token-mean").split(samples=1)[0].bind(log_probs=live(torch.tensor(OLD[:2])))
    assert repr(part) == (
        "PolicyBatch(1 sample, 2 tokens, cpu, part of a step)\n"
        "  loss_mask      bool[2 tokens] cpu fixed\n"
        "  loss_weights   f64[2 tokens] cpu fixed\n"
        "  log_probs      f32[2 tokens] cpu trainable\n"
        "  advantages     f32[2 tokens] cpu fixed\n"
        "  old_log_probs  f64[2 tokens] cpu fixed\n"
        "  sampling       old_log_probs: processed at temperature 0.7\n"
        "  aggregation    token-mean"
    )


def test_repr_of_what_lies_elsewhere_or_is_empty() -> None:
    batch = OPDBatch(
        response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=OLD, teacher_log_probs=torch.ones(5, device="meta")
    )
    assert "  teacher_log_probs  f32[5 tokens] meta fixed" in repr(batch).splitlines()
    assert repr(RolloutBatch(response_lengths=[], loss_mask=[])) == (
        "RolloutBatch(0 samples, 0 tokens, cpu)\n  loss_mask  bool[0 tokens] cpu fixed"
    )


def test_repr_prints_no_values() -> None:
    assert "-2" not in repr(policy_batch(old_log_probs=torch.full((5,), -2.0)))


def test_sampling_as_text() -> None:
    assert str(Sampling()) == "processed at temperature 1.0"
    assert str(Sampling(temperature=0.6, top_p=0.9, top_k=50, log_probs="raw")) == (
        "raw at temperature 0.6, top_p 0.9, top_k 50"
    )


def test_summary() -> None:
    with settings(missing="mask_out"):
        step = PolicyBatch(
            response_lengths=[2, 3, 1],
            group_ids=[0, 0, 1],
            loss_mask=[[1, 1], [1, 0, 1], [0]],
            old_log_probs=torch.tensor([-1.0, NAN, -0.5, 1e30, -1.5, NAN]),
            advantages=torch.tensor([1.0, 2.0, -1.0, NAN, -3.0, 9.0]),
        )
    summary = step.summary()
    assert (summary.samples, summary.groups, summary.tokens, summary.trained_tokens) == (3, 2, 6, 3)
    assert (summary.untrained_samples, summary.longest_response) == (1, 3)
    ranges = {field.name: (field.minimum, field.mean, field.maximum) for field in summary.fields}
    assert ranges["advantages"] == (-3.0, -1.0, 1.0)
    assert ranges["old_log_probs"] == (-1.5, -1.0, -0.5)
    assert ranges["loss_mask"] == (None, None, None)
    assert str(summary) == (
        "PolicyBatch: 3 samples in 2 groups, 6 tokens (3 trained), longest response 3\n"
        "  without any trained token: 1 sample\n"
        "  field          role   shape            min  mean   max\n"
        "  loss_mask      fixed  bool[6 tokens]\n"
        "  advantages     fixed  f32[6 tokens]     -3    -1     1\n"
        "  old_log_probs  fixed  f32[6 tokens]   -1.5    -1  -0.5\n"
        "  repaired: old_log_probs: missing, masked out (1)"
    )


@pytest.mark.parametrize("mask", [[], [[]], [[0]]])
def test_summary_of_nothing(mask: Any) -> None:
    lengths = [len(row) for row in mask]
    batch = PolicyBatch(response_lengths=lengths, loss_mask=mask, old_log_probs=mask, advantages=mask)
    assert batch.summary().trained_tokens == 0
    assert "loss_mask" in str(batch.summary())
