"""Log-probs from logits and from hidden states, against the records of the trainers."""

from __future__ import annotations

import pytest
from torch import Tensor

from rollout_contract.log_probs import Scores, score_hidden_states, score_logits
from tests.conformance.harness import Vector, vectors
from tests.conformance.scored import flat, gradient, live, tensor


def scores_of(vector: Vector, leaf: Tensor | None, role: str) -> Scores:
    """Scores of the sampled tokens; ``leaf`` stands for the tensor of ``role``."""

    def of(name: str) -> Tensor:
        return leaf if leaf is not None and name == role else tensor(vector, name)

    params = vector.params
    if params["quantity"].endswith("_hidden"):
        heat = 1.0 / params["inv_temperature"]
        return score_hidden_states(flat(of("hidden")), of("weight"), flat(of("tokens")), temperature=heat)
    logits = of("logits")
    keep_mask = flat(logits) > params["keep_threshold"] if params["quantity"] == "logprob_keep" else None
    # Entropy needs no token; records without one get the first.
    tokens = of("tokens") if vector.has("tokens") else logits.argmax(-1) * 0
    return score_logits(
        flat(logits), flat(tokens), temperature=params["temperature"], keep_mask=keep_mask, chunk_size=5
    )


@pytest.mark.parametrize("vector", vectors("logprob"), ids=lambda vector: vector.id)
def test_logprob(vector: Vector) -> None:
    role = next((role for role, name in vector.roles.items() if name == vector.entry["wrt"]), "")
    leaf = live(vector, role) if role else None
    value = scores_of(vector, leaf, role).log_probs.view(tensor(vector, "tokens").shape)
    vector.check(value, None if leaf is None else gradient(value, leaf))
