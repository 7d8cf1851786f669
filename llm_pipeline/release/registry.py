"""The stages by name. Stage modules are light: what they need of heavy libraries they import when they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.contract import Stage
from llm_pipeline.release.flow import FLOW, stage_names, step_named
from llm_pipeline.release.step import Environment


def publishes(name: str) -> bool:
    """Whether a stage of that name publishes artifacts, and so signs its results where anything is signed."""
    return name not in stage_names() or load_stage(name).publishes


def load_stage(name: str) -> Stage[Any]:
    """The declaration of a stage.

    Raises:
        ConfigError: There is no such stage, or it declares something else than its step in the flow.
    """
    # ours first: none of a package has such a name, and to look for packages reads the metadata of all of them
    step = next((one for one in FLOW if one.name == name), None) or step_named(name)
    if step is None or not step.is_stage:
        raise ConfigError(f"unknown stage {name!r}", hint=f"stages are: {', '.join(stage_names())}")
    stage: Stage[Any] = import_module(step.module or f"llm_pipeline.stages.{step.stage_name}").STAGE
    own_environment = step.environment is Environment.OF_TARGET or step.environment.value == stage.environment
    if not own_environment or stage.reusable is not step.reusable:
        raise ConfigError(
            f"stage {name} declares environment {stage.environment} and reusable={stage.reusable}, and its step "
            f"environment {step.environment.value} and effect {step.effect.name}",
            hint="a step without effect is reusable, and no other one; let both say the same",
        )
    return stage
