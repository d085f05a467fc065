"""What is checked, and what a build does with input that it could repair.

The checks have levels::

    off        only the repairs: graphs are still cut, masks converted, ragged rows packed
    structure  shape, dtype, device, role, lengths, seal; no device synchronisation
    values     structure, and: trained tokens finite, log-probs not above zero, masks of 0 and 1; one synchronisation
    auto       values for a batch on the CPU, structure on an accelerator (the default)

Set them for the process with :func:`configure`, for a block with :func:`settings`, or from outside by the environment
variables ``ROLLOUT_CONTRACT_LEVEL`` and ``ROLLOUT_CONTRACT_LIVE_INPUTS``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Literal, TypedDict, Unpack

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from rollout_contract.errors import MetadataError, Violation

Level = Literal["off", "structure", "values", "auto"]
LiveInputs = Literal["cut", "warn", "refuse"]
Missing = Literal["refuse", "mask_out", "neutral"]
HalfPrecision = Literal["refuse", "upcast"]


class Settings(BaseModel):
    """The settings in force.

    Attributes:
        level: see the module's docstring.
        live_inputs: what a build does with a fixed field that carries a graph: ``cut`` it silently, cut it and
            ``warn``, or ``refuse`` it with a LiveGraphError, so that the producer is found.
        missing: what a build does with a log-prob that is None or NaN on a trained token: ``refuse`` it, ``mask_out``
            the token, or fill in a ``neutral`` value (``old_log_probs``, so that the importance ratio is exactly 1).
        half_precision: whether float16 and bfloat16 are refused where float32 belongs, or upcast.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    level: Level = "auto"
    live_inputs: LiveInputs = "cut"
    missing: Missing = "refuse"
    half_precision: HalfPrecision = "refuse"

    def level_on(self, device: torch.device) -> Level:
        """The level with ``auto`` resolved for a batch on ``device``."""
        if self.level != "auto":
            return self.level
        return "values" if device.type == "cpu" else "structure"


class SettingsChanges(TypedDict, total=False):
    """The keyword arguments of :func:`settings` and :func:`configure`."""

    level: Level
    live_inputs: LiveInputs
    missing: Missing
    half_precision: HalfPrecision


_VARIABLES = {"level": "ROLLOUT_CONTRACT_LEVEL", "live_inputs": "ROLLOUT_CONTRACT_LIVE_INPUTS"}


def _from_environment() -> Settings:
    try:
        return Settings.model_validate({name: os.environ[key] for name, key in _VARIABLES.items() if key in os.environ})
    except ValidationError as error:
        wrong = [
            Violation(
                _VARIABLES[str(fault["loc"][0])],
                "metadata",
                fault["msg"].removeprefix("Input should be "),
                repr(fault["input"]),
            )
            for fault in error.errors()
        ]
        raise MetadataError("The environment", wrong) from None


_process_settings = _from_environment()
_block_settings: ContextVar[Settings | None] = ContextVar("rollout_contract_settings", default=None)


def current_settings() -> Settings:
    """The settings in force here: those of the innermost block, else those of the process."""
    return _block_settings.get() or _process_settings


def configure(**changes: Unpack[SettingsChanges]) -> None:
    """Change settings for the whole process. An unknown name or value is a ``pydantic.ValidationError``."""
    global _process_settings
    _process_settings = Settings.model_validate(_process_settings.model_dump() | dict(changes))


@contextmanager
def settings(**changes: Unpack[SettingsChanges]) -> Generator[Settings]:
    """Change settings inside a ``with`` block.

    >>> with settings(missing="mask_out"):
    ...     step = MyStep(...)
    """
    changed = Settings.model_validate(current_settings().model_dump() | dict(changes))
    token = _block_settings.set(changed)
    try:
        yield changed
    finally:
        _block_settings.reset(token)
