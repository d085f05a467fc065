"""The loss of a trainer, made of the options that it was configured with there.

    recipe = preset("verl", {"actor": {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_high": 4e-4, ...}})
    recipe = preset("miles", {"--advantage-estimator": "gspo", "--eps-clip": 3e-4, "--use-tis": True})

    step = recipe.prepare(step)                        # corrected and weighted, before any split
    for micro in step.split(max_tokens=16_384):
        recipe.loss(micro.bind(log_probs=..., entropy=...)).backward()

An option that is unknown, contradictory, or that this library cannot follow is an error; none is dropped silently.
``docs/presets.md`` lists the options of every trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rollout_contract.errors import Violation
from rollout_contract.presets.areal import ArealOptions
from rollout_contract.presets.liger import LigerOptions
from rollout_contract.presets.miles import MilesOptions
from rollout_contract.presets.nemo_rl import NemoRLOptions
from rollout_contract.presets.openrlhf import OpenRLHFOptions
from rollout_contract.presets.options import OptionError as OptionError
from rollout_contract.presets.options import TrainerOptions as TrainerOptions
from rollout_contract.presets.options import Unrelated as Unrelated
from rollout_contract.presets.prime_rl import PrimeRLOptions
from rollout_contract.presets.recipe import AdvantageRule as AdvantageRule
from rollout_contract.presets.recipe import Critic as Critic
from rollout_contract.presets.recipe import Entropy as Entropy
from rollout_contract.presets.recipe import KLInLoss as KLInLoss
from rollout_contract.presets.recipe import KLInReward as KLInReward
from rollout_contract.presets.recipe import Recipe as Recipe
from rollout_contract.presets.recipe import TermWeights as TermWeights
from rollout_contract.presets.rules import ZeroOutside as ZeroOutside
from rollout_contract.presets.skyrl import SkyRLOptions
from rollout_contract.presets.slime import SlimeOptions
from rollout_contract.presets.tinker import TinkerOptions
from rollout_contract.presets.torchforge import ReinforceOptions, SimpleGRPOOptions
from rollout_contract.presets.trl import TRLOptions
from rollout_contract.presets.trl_others import TRLGMPOOptions, TRLGSPOTokenOptions, TRLRLOOOptions
from rollout_contract.presets.verl import VerlOptions

TRAINERS: Mapping[str, type[TrainerOptions]] = MappingProxyType(
    {
        "miles": MilesOptions,
        "slime": SlimeOptions,
        "verl": VerlOptions,
        "trl": TRLOptions,
        "trl.rloo": TRLRLOOOptions,
        "trl.gmpo": TRLGMPOOptions,
        "trl.gspo_token": TRLGSPOTokenOptions,
        "openrlhf": OpenRLHFOptions,
        "prime-rl": PrimeRLOptions,
        "nemo-rl": NemoRLOptions,
        "areal": ArealOptions,
        "skyrl": SkyRLOptions,
        "liger": LigerOptions,
        "torchforge.simple_grpo": SimpleGRPOOptions,
        "torchforge.reinforce": ReinforceOptions,
        "tinker": TinkerOptions,
    }
)
"""Name -> the options that are understood."""


def preset(trainer: str, options: Mapping[str, Any] | None = None, *, unrelated: Unrelated = "refuse") -> Recipe:
    """The loss that a trainer computes with these options.

    Args:
        trainer: one of ``TRAINERS``, in any case.
        options: names and values as they stand in the trainer's configuration or on its command line; what is left out
            has the trainer's default. Nested mappings and dotted names are the same, a dotted name may be shortened
            from the left, and a flag may keep its dashes.
        unrelated: whether options of the trainer that do not decide about the loss are refused, or ignored. Names that
            are not known are refused in any case.

    Raises:
        OptionError: with every option that is unknown, unrelated, out of range, contradictory, or not covered.
    """
    name = trainer.lower()
    if name not in TRAINERS:
        unknown = Violation("trainer", "unknown", ", ".join(TRAINERS), trainer)
        raise OptionError("preset", [unknown])
    return TRAINERS[name].read(options or {}, unrelated).recipe()
