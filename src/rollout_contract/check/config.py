"""The table ``[tool.rollout_contract]`` of a pyproject.toml."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

Format = Literal["text", "json", "sarif", "github"]


def rule_name(name: str) -> str:
    """The name itself, if there is such a rule."""
    from rollout_contract.check.rules import RULE_NAMES

    if name in RULE_NAMES:
        return name
    close = get_close_matches(name, RULE_NAMES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"rules: {', '.join(RULE_NAMES)}"
    raise ValueError(f"there is no rule {name!r}; {hint}")


RuleName = Annotated[str, AfterValidator(rule_name)]


class Config(BaseModel):
    """What the command checks, and how. An unknown key or rule is an error.

    Attributes:
        targets: modules, packages, or ``module:name``.
        only: rules to look at; all when empty.
        ignore: rules to leave out.
        exclude: patterns of functions and schemas to leave out, such as ``mytrainer.losses:*_with_model``.
        fail_fast: stop at the first fault.
        format: of the report.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    targets: tuple[str, ...] = ()
    only: tuple[RuleName, ...] = ()
    ignore: tuple[RuleName, ...] = ()
    exclude: tuple[str, ...] = ()
    fail_fast: bool = False
    format: Format = "text"


class ConfigError(ValueError):
    """The configuration is wrong; the message says where and why."""


def find_config(start: Path) -> Config:
    """The configuration of the nearest pyproject.toml at or above ``start``; the defaults if it has none.

    Raises:
        ConfigError: the file cannot be read, or the table has an unknown key, rule or value.
    """
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return read_config(file)
    return Config()


def read_config(file: Path) -> Config:
    """The configuration in one file."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("rollout_contract", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{file}, [tool.rollout_contract]: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Pydantic's faults in one line."""
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)
