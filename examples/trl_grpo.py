"""TRL's GRPO through the contract: one class name is another one.

    python examples/trl_grpo.py                # about a minute on one core, no download

A small transformer with random weights learns which of two digits is the larger one, from rewards alone. Then somebody
forgets ``torch.no_grad``: plain TRL would train on without a word, the contract says what is wrong.
"""
# ruff: noqa: E402 (what the environment says has to be said before the imports)

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_VERBOSITY="error")
warnings.simplefilter("ignore", FutureWarning)

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig

from rollout_contract import settings
from rollout_contract.errors import LiveGraphError
from rollout_contract.integrations.trl import ContractGRPOTrainer  # instead of: from trl import GRPOTrainer

WORDS = ["<pad>", "<eos>", *(str(digit) for digit in range(10)), ">"]
STEPS = 300


def is_larger(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """1 for the larger digit and nothing else, checked by a program."""
    return [
        float(completion.split() == [max(prompt.split()[:2])])
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def make_policy() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), hidden_size=64, intermediate_size=128, **heads, **ids))


def make_trainer(kind: type[ContractGRPOTrainer], steps: int) -> ContractGRPOTrainer:
    pairs = [f"{a} {b} >" for a in range(10) for b in range(10) if a != b]
    trainer = kind(
        model=make_policy(),
        reward_funcs=is_larger,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            loss_type="dapo",
            epsilon_high=0.28,
            num_iterations=2,
            learning_rate=3e-3,
            max_steps=steps,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=2,
            logging_steps=max(1, steps // 10),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            activation_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": pairs}),
        processing_class=make_tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class Table(TrainerCallback):
    """TRL's names beside the contract's."""

    COLUMNS = ("reward", "entropy", "clip_ratio/region_mean", "contract/approx_kl", "contract/log_ratio_max")

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        print("step", *(f"{name:>24}" for name in self.COLUMNS))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        if "reward" in logs:
            print(f"{state.global_step:4d}", *(f"{logs[name]:24.4f}" for name in self.COLUMNS), flush=True)


class Careless(ContractGRPOTrainer):
    """Scores the old policy without ``torch.no_grad``, so that every ratio is 1 and every gradient 0."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        scored = super()._generate_and_score_completions(inputs)
        tokens = torch.cat([scored["prompt_ids"], scored["completion_ids"]], 1)
        mask = torch.cat([scored["prompt_mask"], scored["completion_mask"]], 1)
        width = scored["completion_ids"].size(1)
        live, _, _ = self._get_per_token_logps_and_entropies(self.model, tokens, mask, width)
        return scored | {"old_per_token_logps": live}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)

    trainer = make_trainer(ContractGRPOTrainer, steps)
    trainer.add_callback(Table())
    trainer.train()

    print("\nThe same, where the old log-probs are scored with a graph:\n")
    try:
        with settings(live_inputs="refuse"):
            make_trainer(Careless, steps=1).train()
    except LiveGraphError as error:
        print(error)


if __name__ == "__main__":
    main()
