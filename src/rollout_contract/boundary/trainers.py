"""The dicts of nine trainers, as they are between scoring and loss.

Where the rows of a trainer cover prompts too, the prompt's tokens are masked tokens of the batch. Names and alignments
were read in the trainers' sources; ``docs/boundary.md`` says at which place of each the dict looks like this.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollout_contract.boundary.names import Key, Names

MILES = Names(
    trainer="miles",
    form="list",
    lengths="response_lengths",
    totals="total_lengths",
    fields={
        "loss_mask": "loss_masks",
        "old_log_probs": "log_probs",
        "reverse_kl": "opd_reverse_kl",
    },
)
"""Of the training actors: lists with one tensor per sample, response tokens only.

With context parallelism the scores are local parts of the responses and the masks are not: pass ``loss_mask=`` and
``response_lengths=`` of the local parts.
"""

SLIME = MILES.but(trainer="slime")
"""As miles."""

VERL = Names(
    trainer="verl",
    fields={
        "loss_mask": "response_mask",
        "ref_log_probs": "ref_log_prob",
        "correction_weights": "rollout_is_weights",
        "token_rewards": "token_level_rewards",
        "observed_entropy": "entropys",
    },
)
"""``DataProto.batch``: responses, padded on the right."""

TRL = Names(
    trainer="TRL",
    fields={
        "loss_mask": Key("completion_mask", "tool_mask"),
        "old_log_probs": "old_per_token_logps",
        "rollout_log_probs": "sampling_per_token_logps",
        "ref_log_probs": "ref_per_token_logps",
        "advantages": Key("advantages", per_row=True),
        "correction_weights": Key("importance_sampling_ratio", per_row=True),
    },
)
"""The inputs of ``GRPOTrainer._compute_loss``: completions, padded on the right."""

OPENRLHF = Names(
    trainer="OpenRLHF",
    alignment="prediction",
    fields={
        "loss_mask": "action_mask",
        "old_log_probs": "action_log_probs",
        "ref_log_probs": "base_action_log_probs",
    },
)
"""``vars(experience)``: rows of prompt and response, one column short, for column i scores token i + 1."""

PRIME_RL = Names(
    trainer="prime-rl",
    form="packed",
    lengths="seq_lens",
    fields={"rollout_log_probs": "inference_logprobs", "ref_log_probs": "ref_logprobs"},
)
"""``TensorMicroBatch``: sequences of prompt and response end to end, [1, tokens]."""

NEMO_RL = Names(
    trainer="NeMo-RL",
    fields={
        "loss_mask": Key("token_mask", "sample_mask"),
        "old_log_probs": "prev_logprobs",
        "rollout_log_probs": "generation_logprobs",
        "ref_log_probs": "reference_policy_logprobs",
    },
)
"""``BatchedDataDict``: rows of prompt and response, padded on the right; column 0 holds no score."""

SKYRL = Names(
    trainer="SkyRL",
    padding="left",
    fields={
        "old_log_probs": "action_log_probs",
        "rollout_log_probs": "rollout_logprobs",
        "ref_log_probs": "base_action_log_probs",
        "token_rewards": "rewards",
    },
)
"""``TrainingInputBatch``: responses, padded on the left."""

AREAL = Names(
    trainer="AReaL",
    alignment="prediction",
    offsets="cu_seqlens",
    fields={
        "old_log_probs": Key("prox_logp", alignment="prediction"),
        "rollout_log_probs": "logprobs",
        "ref_log_probs": Key("ref_logp", alignment="prediction"),
        "teacher_log_probs": Key("teacher_logp", alignment="prediction"),
        "values": Key("values", alignment="prediction"),
    },
)
"""After ``compute_advantages``, which rolls masks and rollout log-probs by one: rows of prompt and response."""

AREAL_ROLLOUTS = AREAL.but(alignment="token")
"""Before ``compute_advantages``: masks and rollout log-probs are token-aligned, what the engines scored is not."""

TRAINERS: Mapping[str, Names] = MappingProxyType(
    {names.trainer: names for names in (MILES, SLIME, VERL, TRL, OPENRLHF, PRIME_RL, NEMO_RL, SKYRL, AREAL)}
)
"""Trainer -> its names."""
