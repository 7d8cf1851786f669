"""The stages by name. Stage modules are light: what they need of heavy libraries they import when they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.stages.contract import Stage

STAGE_NAMES = (
    "resolve",
    "eval_data",
    "download",
    "baseline",
    "baseline_gate",
    "quantize",
    "accuracy",
    "choose",
    "build",
    "package",
    "staging",
    "served_accuracy",
    "load_test",
    "staging_down",
    "canary",
    "rollback",
    "settle",
    "report",
)


def publishes(name: str) -> bool:
    """Whether a stage of that name publishes artifacts, and so signs its results where anything is signed."""
    return name not in STAGE_NAMES or load_stage(name).publishes


def load_stage(name: str) -> Stage[Any]:
    """The declaration of a stage.

    Raises:
        ConfigError: There is no such stage.
    """
    if name not in STAGE_NAMES:
        raise ConfigError(f"unknown stage {name!r}", hint=f"stages are: {', '.join(STAGE_NAMES)}")
    stage: Stage[Any] = import_module(f"llm_pipeline.stages.{name}").STAGE
    return stage
