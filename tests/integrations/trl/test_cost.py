"""What the contract costs a padded trainer: no second forward, no synchronisation, one gather for each live field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rollout_contract.integrations.trl import ContractGRPOTrainer
from rollout_contract.integrations.trl.configuration import Configuration
from rollout_contract.integrations.trl.inputs import LENGTHS, layout_of
from rollout_contract.integrations.trl.observe import own_metrics, trl_metrics
from rollout_contract.integrations.trl.step import Forward, Window, bound_step, losses
from rollout_contract.metrics import Metrics
from tests.integrations.trl.world import Script, make_config, make_trainer

ROWS, WIDTH = 3, 5


def made(device: str, **more: Any) -> dict[str, Any]:
    """Inputs as TRL makes them, without values that anybody could look at on the device "meta"."""

    def scores() -> Tensor:
        return torch.full((ROWS, WIDTH), -1.0, device=device)

    ones = torch.ones(ROWS, WIDTH, dtype=torch.long, device=device)
    inputs = {
        "completion_mask": ones,
        "tool_mask": ones,
        "advantages": torch.ones(ROWS, device=device),
        "num_items_in_batch": torch.tensor(30, device=device),
        "old_per_token_logps": scores(),
        "ref_per_token_logps": scores(),
        "sampling_per_token_logps": scores(),
        "importance_sampling_ratio": torch.ones(ROWS, WIDTH, device=device),
        LENGTHS: [5, 3, 1],
    }
    return inputs | more


def live(device: str) -> Forward:
    return Forward(*(torch.full((ROWS, WIDTH), -1.0, device=device, requires_grad=True) for _ in range(2)))


OPTIONS: list[dict[str, Any]] = [
    *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")),
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 1.5},
    {"top_entropy_quantile": 0.5},
    {"entropy_coef": 0.1},
    {"off_policy_mask_threshold": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(map(str, options.values())))
def test_nothing_waits_for_the_device(options: dict[str, Any], tmp_path: Path) -> None:
    """On the device "meta" there is no value to wait for: whoever asks for one fails."""
    configuration = Configuration(make_config(tmp_path, beta=0.1, **options))
    inputs = made("meta")
    window = Window(2, configuration.denominator(inputs, num_processes=1, is_training=True), is_corrected=True)
    step = bound_step(configuration, inputs, live("meta"), window)
    loss = losses(configuration, step, window)
    trl_metrics(step, loss, configuration.objective)
    own_metrics(step, loss)
    loss.total.backward()


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_one_gather_for_each_live_field(entropy_coef: float, tmp_path: Path) -> None:
    configuration = Configuration(make_config(tmp_path, loss_type="grpo", entropy_coef=entropy_coef))
    forward = live("cpu")
    step: Any = bound_step(configuration, made("cpu"), forward, Window(1, None, is_corrected=False))
    assert steps_back(step.log_probs, forward.log_probs) == ["IndexSelectBackward0", "ViewBackward0"]
    if entropy_coef:
        assert steps_back(step.entropy, forward.entropy) == ["IndexSelectBackward0", "ViewBackward0"]
    else:
        assert not step.has("entropy")


def steps_back(end: Tensor, start: Tensor) -> list[str]:
    """The names of the operations between a leaf and what was made of it alone."""
    names, node = [], end.grad_fn
    while node is not None and getattr(node, "variable", None) is not start:
        names.append(node.name())
        (node, _), *others = node.next_functions
        assert not others
    return names


def test_no_second_forward(tmp_path: Path) -> None:
    counts = []
    for kind in (GRPOTrainer, ContractGRPOTrainer):
        trainer = make_trainer(kind, make_config(tmp_path, max_steps=3, gradient_accumulation_steps=2), Script())
        passes: list[None] = []
        trainer.model.model.register_forward_hook(lambda *arguments, passes=passes: passes.append(None))
        trainer.train()
        counts.append(len(passes))
    assert counts == [6, 6]


def test_the_host_knows_the_lengths_without_asking(tmp_path: Path) -> None:
    """They go through TRL's shuffle and split like any column."""

    class Watched(ContractGRPOTrainer):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            assert inputs[LENGTHS] == inputs["completion_mask"].sum(1).tolist()
            seen.append(inputs[LENGTHS])
            return super()._compute_loss(model, inputs)

    seen: list[list[int]] = []
    for pad_to_multiple_of in (None, 8):
        rhythm = {"steps_per_generation": 2, "num_iterations": 2, "pad_to_multiple_of": pad_to_multiple_of}
        make_trainer(Watched, make_config(tmp_path, max_steps=4, **rhythm), Script()).train()
    assert len(seen) == 8


def test_lengths_are_those_of_what_is_padded(tmp_path: Path) -> None:
    """Also if a subclass reorders and extends the completions, or somebody does it on the instance."""

    def longer(generated: Any) -> Any:
        prompt_ids, completion_ids, *others = generated
        return prompt_ids, [[*ids, 5, 5] for ids in completion_ids[::-1]], *others

    class Longer(ContractGRPOTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            return longer(super()._generate(prompts))

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            assert inputs[LENGTHS] == inputs["completion_mask"].sum(1).tolist()
            assert min(inputs[LENGTHS]) >= least
            return super()._compute_loss(model, inputs)

    least = 3
    trainer = make_trainer(Longer, make_config(tmp_path), Script())
    trainer.train()
    assert "_generate" not in vars(trainer)
    least, generate = 5, trainer._generate
    trainer._generate = lambda prompts: longer(generate(prompts))
    patched = trainer._generate
    trainer.train()
    assert trainer._generate is patched


@pytest.mark.parametrize("lengths", [None, [6, 3, 1], [5, 3], []])
def test_lengths_that_do_not_fit_are_read_from_the_mask(lengths: list[int] | None) -> None:
    layout = layout_of(made("cpu", **{LENGTHS: lengths}))
    assert layout.response_lengths == (WIDTH,) * ROWS


def test_metrics_are_read_once_for_each_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    compute = Metrics.compute

    def counted(self: Metrics) -> dict[str, float]:
        reads.append(len(self))
        return compute(self)

    monkeypatch.setattr(Metrics, "compute", counted)
    config = make_config(tmp_path, max_steps=6, logging_steps=3, gradient_accumulation_steps=2)
    make_trainer(ContractGRPOTrainer, config, Script()).train()
    assert len(reads) == 3, "two logs, and the summary of the run"
    assert reads[-1] == 0
