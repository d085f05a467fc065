"""For every loss of TRL and every option of its loss: the same loss, gradient and metrics on the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.integrations.trl.compared import Compared, assert_same
from tests.integrations.trl.world import WORDS, Script, make_config, make_trainer, pretend_vllm

# Steps far enough apart that ratios leave their clip range, and that old log-probs are needed.
OFF_POLICY: dict[str, Any] = {"num_iterations": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-2}
TOKEN_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")
SEQUENCE_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo")
IS_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def train(path: Path, script: Script, *, reference: Path | None = None, vllm: bool = False, **options: Any) -> Compared:
    trainer: Compared = make_trainer(Compared, make_config(path, **(OFF_POLICY | options)), script, reference)
    if vllm:
        pretend_vllm(trainer)
    trainer.train()
    assert_same(trainer.sides)
    return trainer


@pytest.mark.parametrize("loss_type", TOKEN_LOSSES)
def test_losses(loss_type: str, tmp_path: Path) -> None:
    train(tmp_path, Script(), loss_type=loss_type, epsilon_high=2.0 if loss_type == "cispo" else None)


@pytest.mark.parametrize("loss_type", SEQUENCE_LOSSES)
def test_one_ratio_per_sequence(loss_type: str, tmp_path: Path) -> None:
    train(tmp_path, Script(tools=True), loss_type=loss_type, importance_sampling_level="sequence")


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("delta", [1.1, 1.5])
def test_delta(loss_type: str, delta: float, tmp_path: Path) -> None:
    train(tmp_path, Script(), loss_type=loss_type, delta=delta, epsilon_high=0.28)


@pytest.mark.parametrize("loss_type", TOKEN_LOSSES)
def test_kl_with_the_weight_of_the_policy(loss_type: str, tmp_path: Path, reference_path: Path) -> None:
    train(tmp_path, Script(), reference=reference_path, loss_type=loss_type, beta=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"use_bias_correction_kl": False},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "use_bias_correction_kl": False},
        {"loss_type": "bnpo", "top_entropy_quantile": 0.3},
        {"loss_type": "sapo", "mask_truncated_completions": True, "entropy_coef": 0.05},
    ],
    ids=lambda options: "+".join(map(str, options.values())),
)
def test_kl(options: dict[str, Any], tmp_path: Path, reference_path: Path) -> None:
    train(tmp_path, Script(tools=True), reference=reference_path, beta=0.05, **options)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "cispo"])
@pytest.mark.parametrize("quantile", [0.2, 0.6])
def test_top_entropy_quantile(loss_type: str, quantile: float, tmp_path: Path) -> None:
    train(tmp_path, Script(tools=True), loss_type=loss_type, top_entropy_quantile=quantile)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "luspo"])
def test_entropy_bonus(loss_type: str, tmp_path: Path) -> None:
    """Its denominators are those of the micro-batch, whatever the loss type's."""
    train(tmp_path, Script(tools=True), loss_type=loss_type, entropy_coef=0.1)


@pytest.mark.parametrize("loss_type", [*TOKEN_LOSSES])
def test_masked_truncated_completions_and_tool_tokens(loss_type: str, tmp_path: Path) -> None:
    train(tmp_path, Script(tools=True), loss_type=loss_type, mask_truncated_completions=True)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "vespo"])
def test_a_batch_in_which_everything_is_masked(loss_type: str, tmp_path: Path) -> None:
    trainer = train(tmp_path, Script(finished=0.0), loss_type=loss_type, mask_truncated_completions=True)
    assert all(ours.loss == 0.0 for _, ours in trainer.sides)


@pytest.mark.parametrize("scored", [False, True], ids=["from_old", "from_sampler"])
def test_off_policy_mask(scored: bool, tmp_path: Path) -> None:
    """Measured from the sampler when TRL has its log-probs, with or without vLLM; else from the old policy."""
    train(tmp_path, Script(scored=scored), off_policy_mask_threshold=0.05)


@pytest.mark.parametrize("mode", IS_MODES)
def test_importance_sampling_correction(mode: str, tmp_path: Path) -> None:
    script = Script(scored=True, tools=True)
    train(tmp_path, script, vllm=True, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=0.3)


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"},
        {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"off_policy_mask_threshold": 0.05, "top_entropy_quantile": 0.5},
        {"vllm_importance_sampling_correction": False},
    ],
    ids=lambda options: "+".join(map(str, options.values())),
)
def test_importance_sampling_correction_with(options: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path, Script(scored=True), vllm=True, **options)


def test_tokens_that_the_sampler_could_not_score(tmp_path: Path) -> None:
    """Their importance ratio is 1, and their share is logged."""
    script = Script(scored=True, unscored=0.3)
    trainer = train(tmp_path, script, vllm=True, vllm_importance_sampling_mode="token_truncate")
    shares = [ours.metrics["contract/mismatch/unscored"] for _, ours in trainer.sides]
    assert all(0.0 < share < 0.6 for share in shares)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
@pytest.mark.parametrize(
    ("accumulation", "steps", "iterations"),
    [(1, 1, 1), (2, 1, 1), (2, 4, 1), (3, 2, 1), (1, 2, 3)],
)
def test_denominators(loss_type: str, accumulation: int, steps: int, iterations: int, tmp_path: Path) -> None:
    """Accumulation windows that are longer, shorter than, and out of step with the generation batch."""
    rhythm = {"gradient_accumulation_steps": accumulation, "steps_per_generation": steps, "num_iterations": iterations}
    train(tmp_path, Script(tools=True), loss_type=loss_type, **rhythm)


def test_an_accumulation_window_that_the_epoch_cuts_short(tmp_path: Path) -> None:
    rhythm = {"gradient_accumulation_steps": 3, "steps_per_generation": 1, "num_iterations": 1}
    trainer = train(tmp_path, Script(), max_steps=-1, num_train_epochs=1, **rhythm)
    assert len(trainer.sides) % 3


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "luspo"])
def test_several_ranks(loss_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's count of tokens is that of all ranks, and gradients are averaged over them."""
    compute = Compared._compute_loss

    def of_two_ranks(self: Compared, model: Any, inputs: dict[str, Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Accelerator, "num_processes", 2)
            return compute(self, model, inputs)

    monkeypatch.setattr(Compared, "_compute_loss", of_two_ranks)
    train(tmp_path, Script(), loss_type=loss_type)


@pytest.mark.parametrize("options", [{"pad_to_multiple_of": 8}, {"bf16": True}, {"temperature": 0.7}])
def test_surroundings(options: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path, Script(), **options)


def test_the_loss_of_a_router(tmp_path: Path) -> None:
    """A mixture of experts returns it; TRL adds it, and so does the contract."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4}
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(vocab_size=len(WORDS), num_experts_per_tok=2, router_aux_loss_coef=0.3, **sizes, **heads)
    )
    trainer: Compared = make_trainer(Compared, make_config(tmp_path, **OFF_POLICY), Script(), model=model)
    trainer.train()
    assert_same(trainer.sides)
    assert all(ours.metrics["aux_loss"] > 0 for _, ours in trainer.sides)


def test_rollouts_of_the_policy(tmp_path: Path) -> None:
    """Nothing scripted: TRL generates."""
    trainer: Compared = make_trainer(Compared, make_config(tmp_path, **OFF_POLICY))
    trainer.train()
    assert_same(trainer.sides)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "vespo"])
def test_evaluation(loss_type: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, loss_type=loss_type, **OFF_POLICY)
    trainer: Compared = make_trainer(Compared, config, Script())
    found = trainer.evaluate()
    assert_same(trainer.sides)
    assert found["eval_loss"] == pytest.approx(sum(ours.loss for _, ours in trainer.sides) / len(trainer.sides))
