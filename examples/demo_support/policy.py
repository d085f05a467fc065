"""A small causal transformer, and the one function that scores the responses of a batch with it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollout_contract import Layout
from rollout_contract.log_probs import Scores, score_logits


class Block(nn.Module):
    """Pre-norm attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(hidden)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(attended.transpose(1, 2).flatten(2))
        mixed: Tensor = hidden + self.perceptron(hidden)
        return mixed


class Policy(nn.Module):
    """[batch, width] token ids -> [batch, width, vocabulary] logits; those at position i predict token i + 1."""

    def __init__(self, vocabulary: int, context: int, *, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.embed_token = nn.Embedding(vocabulary, width)
        self.embed_position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed_token(tokens) + self.embed_position.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.blocks(hidden))
        return logits

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class HasSequences(Protocol):
    """What :func:`score` reads: whole sequences of token ids, and where the responses lie in them."""

    @property
    def layout(self) -> Layout: ...
    @property
    def input_ids(self) -> Tensor: ...


def score(policy: Policy, batch: HasSequences) -> Scores:
    """Log-probs and entropy of every response token, [tokens] in nats; differentiable unless grad mode is off.

    The model wants rows of one width, so sequences are padded on the right, where causal attention never looks. The
    layout then takes out the logits that predict each response token: no padding reaches the batch.
    """
    sequences = Layout(batch.layout.sequence_lengths)
    logits = sequences.pack(policy(sequences.pad(batch.input_ids)))
    response_ids = batch.layout.response_from_sequence(batch.input_ids)
    return score_logits(batch.layout.response_from_predictions(logits), response_ids)


@torch.no_grad()
def score_fixed(policy: Policy, batch: HasSequences) -> Tensor:
    """Log-probs that a batch takes as a fixed input. It would cut their graph anyway; this does not even make one."""
    return score(policy, batch).log_probs
