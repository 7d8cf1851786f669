"""The flags of `trtllm-build`, as recorded from its source, with their types, choices and limits.

`data/trtllm_build_flags.json` says where each was read and how sure it is.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FlagValue = str | int | bool

_OFF: tuple[FlagValue | None, ...] = (None, False, 0, "", "disable")


class GpuLimit(BaseModel):
    """Compute capabilities (`sm90`) that a flag is limited to, or refused on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    only: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class BuildFlag(BaseModel):
    """One flag.

    Attributes:
        name: With its dashes.
        type: `flag` takes no value; `enum+` and `path+` take several.
        status: `deprecated` ones have a better way; `unsupported` ones fail when they are switched on.
        aliases: Other spellings.
        choices: Legal values; None for any of the type.
        gpu: Where it may be used; None for everywhere.
        requires: Flags that must be on with it.
        conflicts: Flags that must not be given with it.
        architectures: The only architectures that it works for; empty for all.
        replacement: What to use instead of a deprecated one.
        precision: Checkpoints that it is for.
        note: What else is known.
        default: The tool's own value.
        default_evidence: How sure the default is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    group: Literal["general", "logits", "lora", "speculative", "plugin", "feature"]
    type: Literal["int", "str", "path", "path+", "enum", "enum+", "flag"]
    status: Literal["current", "deprecated", "unsupported"]
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    gpu: GpuLimit | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    replacement: str = ""
    precision: str = ""
    note: str = ""
    default: FlagValue | None
    default_evidence: str = "seen"
    meaning: str

    @property
    def key(self) -> str:
        """The name without dashes, as in the engine's `config.json`."""
        return self.name.removeprefix("--")

    @property
    def is_switch(self) -> bool:
        """Whether it is switched with `enable` and `disable`."""
        return self.choices == ("enable", "disable")


@cache
def build_flags() -> dict[str, BuildFlag]:
    """All flags by name without dashes."""
    return {flag.key: flag for flag in map(BuildFlag.model_validate, _table()["flags"])}


@cache
def removed_flags() -> dict[str, str]:
    """Flags of older releases by name without dashes, with what became of them."""
    return {name.removeprefix("--"): reason for name, reason in _table()["removed_flags"].items()}


def find_flag(key: str) -> BuildFlag | None:
    """The flag of that name or alias, without dashes."""
    by_alias = {alias.removeprefix("--"): flag for flag in build_flags().values() for alias in flag.aliases}
    return build_flags().get(key) or by_alias.get(key)


def refused_on(sm: str) -> tuple[str, ...]:
    """Names, without dashes, of the flags that the tool refuses on a compute capability."""
    return tuple(_table()["sm_refusals"].get(sm.removeprefix("sm"), ()))


def is_on(value: FlagValue | None) -> bool:
    """Whether a value switches its flag on."""
    return value not in _OFF


@cache
def _table() -> dict[str, Any]:
    text = (
        files("llm_pipeline.engines.trtllm_build").joinpath("data/trtllm_build_flags.json").read_text(encoding="utf-8")
    )
    table: dict[str, Any] = json.loads(text)
    return table
