"""A world that is small enough for a test: a policy, a tokenizer, scripted rollouts and rewards. No download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", "<bos>", *(str(digit) for digit in range(10)), "+", "="]
PAD, EOS = 0, 1
PROMPTS = ["1 + 2 =", "3 + 4 + 1 =", "5 =", "1 + 1 + 1 ="]


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", padding_side="left"
    )


def make_model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=2,
        )
    )


def sevens(completions: list[str], **columns: Any) -> list[float]:
    """A verifiable reward: how many sevens a completion has, less a little for each token."""
    return [completion.count("7") - 0.1 * len(completion.split()) for completion in completions]


class Script:
    """Rollouts that do not depend on the policy, so that two trainers see the same ones; TRL's ``rollout_func``.

    Args:
        longest: completions have 1 to this many tokens.
        finished: how many of them end with an end-of-sequence token, as a share.
        scored: give log-probs as a sampler would.
        unscored: the share of tokens that the sampler has no log-prob for.
        tools: mark some tokens as a tool's.
    """

    def __init__(
        self,
        longest: int = 6,
        *,
        finished: float = 0.5,
        scored: bool = False,
        unscored: float = 0.0,
        tools: bool = False,
    ) -> None:
        self.longest, self.finished, self.scored, self.unscored, self.tools = longest, finished, scored, unscored, tools
        self.generator = torch.Generator().manual_seed(0)
        self.tokenizer = make_tokenizer()

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        completions = [self._completion() for _ in prompts]
        found: dict[str, Any] = {
            "prompt_ids": [self.tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": completions,
            "logprobs": None,
        }
        if self.scored:
            found["logprobs"] = [self._log_probs(len(completion)) for completion in completions]
        if self.tools:
            found["env_mask"] = [(self._random(len(ids)) < 0.7).long().tolist() for ids in completions]
        return found

    def _random(self, length: int = 1) -> torch.Tensor:
        return torch.rand(length, generator=self.generator)

    def _completion(self) -> list[int]:
        length = 1 + int(self._random() * self.longest)
        ids: list[int] = (3 + self._random(length) * 12).long().tolist()
        return [*ids[:-1], EOS] if self._random() < self.finished else ids

    def _log_probs(self, length: int) -> list[float | None]:
        scores = (-1.5 - 2.5 * self._random(length)).tolist()
        lost = (self._random(length) < self.unscored).tolist()
        return [None if gone else score for score, gone in zip(scores, lost, strict=True)]


def make_config(path: Path, **options: Any) -> GRPOConfig:
    defaults: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "logging_steps": 1,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 6,
        "scale_rewards": "none",
    }
    return GRPOConfig(output_dir=str(path), **(defaults | options))


def make_trainer(
    kind: type[GRPOTrainer],
    config: GRPOConfig,
    script: Callable[..., Any] | None = None,
    reference: Path | None = None,
    model: PreTrainedModel | None = None,
) -> Any:
    """A trainer of this kind, whose rollouts are of the script; without one, of the policy."""
    model = model or make_model()
    model.config._name_or_path = str(reference)
    data = Dataset.from_dict({"prompt": PROMPTS * 8})
    return kind(
        model=model,
        reward_funcs=sevens,
        args=config,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=make_tokenizer(),
        rollout_func=script,
    )


def pretend_vllm(trainer: Any) -> None:
    """As if vLLM had sampled the rollouts of the script: their log-probs are the sampler's."""
    trainer.use_vllm = True
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trainer._last_loaded_step = -1
