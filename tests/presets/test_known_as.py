"""What the registries say about trainers is what presets do, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest

from rollout_contract.advantages import ESTIMATORS
from rollout_contract.corrections import Combined
from rollout_contract.corrections.registry import CORRECTIONS
from rollout_contract.distillation.registry import DISTRIBUTION_TERMS
from rollout_contract.kl import KL_ESTIMATORS, KLEstimator
from rollout_contract.losses.value import CriticError
from rollout_contract.objectives import OBJECTIVES, Objective
from rollout_contract.presets import TRAINERS, OptionError, Recipe, ZeroOutside, preset
from rollout_contract.presets.options import choices

CLASSES = {
    "RLOOTrainer": "trl.rloo",
    "experimental.gmpo": "trl.gmpo",
    "experimental.gspo_token": "trl.gspo_token",
    "SimpleGRPOLoss": "torchforge.simple_grpo",
    "ReinforceLoss": "torchforge.reinforce",
}
"""A class of the trainer that has a preset of its own."""

EXAMPLES: Mapping[str, Any] = {
    "beta": 0.04,
    "top_entropy_quantile": 0.2,
    "off_policy_mask_threshold": 0.5,
    "positive_example_nll_weight": 0.1,
    "reference_policy_kl_penalty": 0.01,
    "dro_beta": 0.05,
    "gae_lambda": 0.95,
    "kl_penalty_coef": 0.1,
    "critic.cliprange_value": 0.5,
    "critic.eps_clip": 0.2,
    "critic.value_loss_type": "huber",
    "value_clip": 0.2,
    "--value_clip": 0.2,
    "--value-clip": 0.2,
    "--opsm-delta": 1e-4,
    "--tis-clip": 2.0,
    "--tis-clip-low": 0.5,
    "rollout_is_threshold": 2.0,
    "rollout_rs_threshold": 2.0,
    "rejection_sampling.upper": 2.0,
    "m2_threshold": 0.04,
    "truncated_importance_sampling_ratio": 2.0,
    "loss_scale_factor": 512,
    "max_seq_len": 512,
    "max_completion_length": 512,
}
"""Values of the options that are named without one. Other options are switches."""

COMPANIONS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("verl", "kl_loss_type"): {"use_kl_loss": True},
    ("miles", "--kl-loss-type"): {"use_kl_loss": True, "kl_loss_coef": 0.1},
    ("slime", "--kl-loss-type"): {"use_kl_loss": True, "kl_loss_coef": 0.1},
    ("miles", "--use-unbiased-kl"): {"use_kl_loss": True, "kl_loss_coef": 0.1},
    ("slime", "--use-unbiased-kl"): {"use_kl_loss": True, "kl_loss_coef": 0.1},
    ("miles", "--value-clip"): {"advantage_estimator": "ppo"},
    ("slime", "--value-clip"): {"advantage_estimator": "ppo"},
    ("skyrl", "value_clip"): {"advantage_estimator": "gae"},
    ("nemo-rl", "truncated_importance_sampling_type"): {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_ratio": 2.0,
        "truncated_importance_sampling_ratio_min": 0.5,
    },
    ("liger", "loss_type"): {"max_completion_length": 512, "beta": 0.0},
}
"""What makes the trainer read an option at all."""


class Entry(NamedTuple):
    """A claim: with these options, the trainer has the thing."""

    kind: str
    name: str
    trainer: str
    text: str


def entries() -> Iterator[Entry]:
    tables: dict[str, Mapping[str, Any]] = {
        "objective": OBJECTIVES,
        "kl": KL_ESTIMATORS,
        "advantages": ESTIMATORS,
        "distillation": DISTRIBUTION_TERMS,
        "correction": CORRECTIONS | {ZeroOutside.name: ZeroOutside},
        "critic": {CriticError.name: CriticError},
    }
    for kind, table in tables.items():
        for name, thing in table.items():
            for trainer, text in thing.known_as.items():
                yield Entry(kind, name, trainer, text)


def without_remarks(text: str) -> str:
    return re.sub(r"\s*\([^)]*\)", "", text)


ALL = list(entries())
SELECTED = [entry for entry in ALL if without_remarks(entry.text)]
ELSEWHERE = {
    ("nll", "verl"), ("nll", "OpenRLHF"), ("nll", "NeMo-RL"), ("value", "NeMo-RL"), ("value", "TRL"),
    ("on_policy_ratio", "slime"), ("on_policy_ratio", "verl"), ("on_policy_ratio", "TRL"),
    ("optimal_advantage", "TRL"), ("sampled_reverse_kl", "TRL"), ("weighted_reverse_kl", "TRL"),
    ("rollout_reverse_kl", "AReaL"), ("front_loaded_reverse_kl", "TRL"), ("discounted_returns", "OpenRLHF"),
    ("reverse_kl_advantages", "miles"), ("minillm_advantages", "TRL"), ("full_vocabulary", "TRL"),
    ("full_vocabulary", "Liger"), ("full_vocabulary", "NeMo-RL"), ("topk_divergence", "TRL"),
    ("truncate", "Liger"), ("topk_divergence", "NeMo-RL"), ("floored_topk_divergence", "NeMo-RL"),
    ("topk_reverse_kl", "miles"),
}  # fmt: skip
"""What a trainer has, but does not select by an option of a preset: it stands in parentheses."""


def options_of(entry: Entry) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, options) for each alternative that the entry names."""
    trainer = entry.trainer.lower()
    parts: list[tuple[str, list[Any]]] = []
    for part in without_remarks(entry.text).split(", "):
        if part in CLASSES:
            trainer = CLASSES[part]
            continue
        name, _, values = part.partition(" " if part.startswith("--") else "=")
        examples = values.split(" | ") if values else [EXAMPLES.get(name, True)]
        parts.append((name, [{"true": True, "false": False}.get(value, value) for value in examples]))
    for chosen in product(*(values for _, values in parts)):
        options = dict(zip((name for name, _ in parts), chosen, strict=True))
        for name in tuple(options):
            options |= COMPANIONS.get((trainer, name), {})
        if trainer in ("miles", "slime") and str(options.get("--advantage-estimator")).startswith("reinforce"):
            options["--normalize-advantages"] = True
        if options.get("--advantage_estimator") == "reinforce_baseline":
            options["--init_kl_coef"] = 0.0
        yield trainer, options


def found_in(recipe: Recipe) -> set[tuple[str, str]]:
    """(kind, name) of everything that a recipe has."""
    found = {("objective", kind.name) for kind in objectives_in(recipe.objective)}
    estimators: list[KLEstimator] = [part.estimator for part in (recipe.kl_loss, recipe.kl_reward) if part is not None]
    estimators += [inner for outer in estimators if (inner := getattr(outer, "estimator", None)) is not None]
    found |= {("kl", estimator.name) for estimator in estimators}
    found |= {("correction", name) for name in corrections_in(recipe.correction)}
    if recipe.positive_nll:
        found.add(("objective", "positive_nll"))
    if recipe.critic is not None:
        found.add(("critic", "value"))
    if recipe.advantages is not None:
        found.add(("advantages", recipe.advantages.estimator))
        if recipe.advantages.distillation is not None:
            found.add(("advantages", "opd_advantages"))
    return found


def corrections_in(rule: Any) -> Iterator[str]:
    if isinstance(rule, Combined):
        for part in rule.rules:
            yield from corrections_in(part)
    elif rule is not None:
        yield rule.name
        yield from corrections_in(getattr(rule, "rule", None))


def objectives_in(objective: Objective) -> Iterator[Objective]:
    yield objective
    if isinstance(inner := getattr(objective, "objective", None), Objective):
        yield from objectives_in(inner)


@pytest.mark.parametrize("entry", SELECTED, ids=lambda entry: f"{entry.name}-{entry.trainer}")
def test_an_entry_resolves(entry: Entry) -> None:
    for trainer, options in options_of(entry):
        recipe = preset(trainer, options)
        assert (entry.kind, entry.name) in found_in(recipe), (trainer, options)
        assert recipe.trainer.split()[0] == entry.trainer


def test_what_no_preset_selects_is_listed() -> None:
    assert {(entry.name, entry.trainer) for entry in ALL if entry not in SELECTED} == ELSEWHERE


ONE_OPTION = [
    (trainer, name, value)
    for trainer, options in TRAINERS.items()
    for name in options.names()
    for value in choices(options, name)
]

BASES: Mapping[str, Mapping[str, Any]] = {
    "verl": {"use_kl_loss": True, "dro_beta": 0.1},
    "miles": {"use_kl_loss": True, "kl_loss_coef": 0.1, "normalize_advantages": True},
    "slime": {"use_kl_loss": True, "kl_loss_coef": 0.1, "normalize_advantages": True},
    "trl": {"beta": 0.1},
    "nemo-rl": {"token_level_loss": False},
    "liger": {"max_completion_length": 512},
}


@pytest.mark.parametrize(("trainer", "option", "value"), ONE_OPTION, ids=lambda value: str(value))
def test_what_a_preset_has_is_known_as(trainer: str, option: str, value: str) -> None:
    try:
        recipe = preset(trainer, {**BASES.get(trainer, {}), option: value})
    except OptionError:
        return
    known = {(entry.kind, entry.name) for entry in ALL if entry.trainer == recipe.trainer.split()[0]}
    assert found_in(recipe) <= known
