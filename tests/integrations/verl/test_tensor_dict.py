"""The boundary on verl's own containers."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl import DataProto

from rollout_contract.boundary import VERL, PersistedBatch, guard


def scored() -> dict[str, torch.Tensor]:
    leaf = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -3.0, -1.5]], requires_grad=True)
    return {
        "responses": torch.zeros(2, 3, dtype=torch.long),
        "response_mask": torch.tensor([[1, 1, 0], [1, 0, 1]]),
        "old_log_probs": leaf * 1.0,
        "ref_log_prob": leaf * 2.0,
        "advantages": torch.ones(2, 3),
        "unknown": leaf * 3.0,
    }


def test_a_tensor_dict() -> None:
    data = TensorDict(scored(), batch_size=2)
    before = {key: data[key] for key in data.keys()}  # noqa: SIM118
    batch = guard(data, PersistedBatch, VERL)
    for key in ("old_log_probs", "ref_log_prob"):
        assert not data[key].requires_grad
        assert data[key].data_ptr() == before[key].data_ptr()
    assert data["unknown"].requires_grad
    assert data["advantages"] is before["advantages"]
    assert batch.has("ref_log_probs")


def test_a_data_proto() -> None:
    data = DataProto.from_dict(tensors=scored())
    guard(data.batch, PersistedBatch, VERL)
    assert not data.batch["old_log_probs"].requires_grad
    assert len(data) == 2


def test_jagged_fields() -> None:
    rows = [torch.tensor([-1.0, -2.0]), torch.tensor([-0.5])]

    def jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    fields = {"response_mask": jagged([torch.ones(2), torch.ones(1)]), "old_log_probs": jagged(rows).requires_grad_()}
    data = TensorDict(fields, batch_size=2)
    batch = guard(data, PersistedBatch, VERL)
    assert data["old_log_probs"].is_nested
    assert not data["old_log_probs"].requires_grad
    assert batch.old_log_probs.tolist() == [-1.0, -2.0, -0.5]
