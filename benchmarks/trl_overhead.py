"""What share of a real TRL step the contract costs: packing, building, weighing, binding, losses, metrics.

    python benchmarks/trl_overhead.py                      # about a minute on one core
    python benchmarks/trl_overhead.py --hidden 512 --length 256

Two trainers take the same steps: ``GRPOTrainer``, and ``ContractGRPOTrainer`` with a stopwatch at each stage.
"""
# ruff: noqa: E402 (what the environment says has to be said before the imports)

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_VERBOSITY="error")
warnings.simplefilter("ignore")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from rollout_contract import settings
from rollout_contract.integrations.trl import ContractGRPOTrainer, trainer

SCORING = "_get_per_token_logps_and_entropies"
STAGES = {
    "pack, build, weigh, bind": ("bound_step",),
    "losses": ("losses",),
    "metrics": ("trl_metrics", "own_metrics"),
}


class Stopwatch:
    """CPU seconds spent in functions, by name; what other programs take of the machine does not count."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.times[name].append(time.process_time() - start)

        return timed

    def watch_without(self, name: str, inner: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time ``function`` without what it spends in calls that are watched as ``inner``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            before, start = sum(self.times[inner]), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.process_time() - start
                self.times[name].append(spent - (sum(self.times[inner]) - before))

        return timed

    def median(self, name: str) -> float:
        """Of all calls but the first."""
        return statistics.median(self.times[name][1:])


def run(kind: type[GRPOTrainer], options: argparse.Namespace) -> Stopwatch:
    """Train, and time what both trainers have: the step, generation with scoring, the loss without its forward pass."""
    words = ["<pad>", "<eos>", *(f"w{i}" for i in range(options.vocabulary - 2))]
    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": options.layers}
    size = {"hidden_size": options.hidden, "intermediate_size": 4 * options.hidden, "vocab_size": len(words)}
    prompts = [" ".join(f"w{(row * 31 + i) % 500}" for i in range(16)) for row in range(16)]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        activation_checkpointing=False,
        max_steps=options.steps,
        per_device_train_batch_size=options.rows,
        num_generations=options.rows,
        steps_per_generation=1,
        num_iterations=2,  # old log-probs are scored, too
        max_completion_length=options.length,
        logging_steps=10,
    )
    made = kind(
        model=Qwen2ForCausalLM(Qwen2Config(**size, **heads)),
        reward_funcs=lambda completions, **columns: [float(len(text) % 7) for text in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<eos>"),
    )
    made.remove_callback(PrinterCallback)
    watch = Stopwatch()
    for name in ("training_step", "_generate_and_score_completions", SCORING):
        setattr(made, name, watch.watch(name, getattr(made, name)))
    made._compute_loss = watch.watch_without("loss", SCORING, made._compute_loss)
    made.train()
    return watch


def measured(options: argparse.Namespace) -> tuple[Stopwatch, Stopwatch]:
    """TRL's own, and ours with its stages."""
    theirs = run(GRPOTrainer, options)
    stages = Stopwatch()
    for name in (name for names in STAGES.values() for name in names):
        setattr(trainer, name, stages.watch(name, getattr(trainer, name)))
    ours = run(ContractGRPOTrainer, options)
    ours.times |= stages.times
    return theirs, ours


def report(options: argparse.Namespace) -> None:
    theirs, ours = measured(options)
    # With two updates per generation every other step generates.
    step = statistics.mean(ours.times["training_step"][2:])
    generation = sum(ours.times["_generate_and_score_completions"][1:]) / len(ours.times["training_step"][2:])
    update = step - generation
    print(f"{options.rows} completions of up to {options.length} tokens, hidden size {options.hidden}")
    print(f"  a step with its share of generation and scoring {1e3 * step:9.2f} ms")
    print(f"  the update alone: forward, loss, backward       {1e3 * update:9.2f} ms")
    for stage, names in STAGES.items():
        cost = sum(ours.median(name) for name in names)
        print(f"  {stage:<46} {1e3 * cost:9.2f} ms  {cost / step:6.2%} of the step  {cost / update:6.2%} of the update")
    plain, whole = theirs.median("loss"), ours.median("loss")
    print(
        f"  all of it, after the forward pass                {1e3 * whole:9.2f} ms; TRL's own loss {1e3 * plain:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {
        "hidden": 256,
        "layers": 4,
        "vocabulary": 4096,
        "rows": 8,
        "length": 128,
        "steps": 12,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--level", default="auto", choices=["off", "structure", "values", "auto"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with settings(level=options.level):
        report(options)


if __name__ == "__main__":
    main()
