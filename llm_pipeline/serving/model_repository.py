"""Triton model repositories: written through the protobuf that the server itself parses, and linted before use.

Layout: `llm/config.pbtxt`, `llm/1/model.py`, `llm/1/engine/`, and beside `llm/` the golden prompts and
`release.json` (facts for people and tools). A repository is read-only once written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.config.target import EngineLimits
from llm_pipeline.engines.builder import EngineDescription
from llm_pipeline.errors import IntegrityError
from llm_pipeline.serving import golden as golden_prompts
from llm_pipeline.serving.golden import GoldenPrompt
from llm_pipeline.serving.repository_layout import (
    CONFIG_FILE,
    ENGINE_DIRECTORY,
    ENGINE_FILES,
    FACT_PREFIX,
    FACTS_FILE,
    INPUTS,
    MODEL_FILE,
    MODEL_NAME,
    MODEL_VERSION,
    OUTPUTS,
    Tensor,
)
from llm_pipeline.serving.repository_lint import lint_repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

Fact = str | int | float | bool | None

__all__ = ["RepositoryFacts", "lint_repository", "model_config", "write_repository"]


@dataclass(frozen=True)
class RepositoryFacts:
    """What was written.

    Attributes:
        model: The model's name in Triton.
        version: Its version.
        bytes: Size of all files.
        files: How many.
        golden_prompts: How many golden prompts it carries.
        maximum_tokens_per_request: The limit that the server enforces: the target's, or the model's if smaller.
    """

    model: str
    version: int
    bytes: int
    files: int
    golden_prompts: int
    maximum_tokens_per_request: int


def write_repository(
    engine: Path,
    golden: Sequence[GoldenPrompt],
    facts: Mapping[str, Fact],
    limits: EngineLimits,
    destination: Path,
) -> RepositoryFacts:
    """Write the model repository of an engine into the new directory `destination`, and lint it.

    Args:
        engine: The engine directory, with `engine.json`.
        golden: Golden prompts, written beside the model.
        facts: Kept in `release.json` and shown as parameters `fact_<name>` of the model.
        limits: What the server accepts at once.
        destination: Directory to make.

    Raises:
        IntegrityError: The engine is not one, or the result breaks a rule of the server.
    """
    description = EngineDescription.read(engine)
    limits = _within_context(limits, description.facts.context_length)
    version = destination / MODEL_NAME / str(MODEL_VERSION)
    _copy_engine(engine, version / ENGINE_DIRECTORY)
    shutil.copyfile(Path(__file__).with_name("openvino_model.py"), version / MODEL_FILE)
    (destination / MODEL_NAME / CONFIG_FILE).write_text(_text(model_config(limits, facts)), encoding="utf-8")
    golden_prompts.write_golden(destination, golden)
    (destination / FACTS_FILE).write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if problems := lint_repository(destination):
        raise IntegrityError("the model repository breaks the server's rules: " + "; ".join(problems), where="package")
    files = [path for path in destination.rglob("*") if path.is_file()]
    return RepositoryFacts(
        model=MODEL_NAME,
        version=MODEL_VERSION,
        bytes=sum(path.stat().st_size for path in files),
        files=len(files),
        golden_prompts=len(golden),
        maximum_tokens_per_request=limits.maximum_tokens_per_request,
    )


def model_config(limits: EngineLimits, facts: Mapping[str, Fact]) -> ModelConfig:
    """The model's configuration as Triton's own message."""
    from tritonclient.grpc import model_config_pb2 as messages

    config = messages.ModelConfig(
        name=MODEL_NAME,
        backend="python",
        max_batch_size=0,
        input=[_input(tensor) for tensor in INPUTS],
        output=[_output(tensor) for tensor in OUTPUTS],
        instance_group=[messages.ModelInstanceGroup(kind=messages.ModelInstanceGroup.KIND_CPU, count=1)],
    )
    config.model_transaction_policy.decoupled = True
    config.version_policy.latest.num_versions = 1
    for name, value in _parameters(limits, facts).items():
        config.parameters[name].string_value = value
    return config


def _copy_engine(engine: Path, destination: Path) -> None:
    """The runtime's files only: a store keeps its own beside them. The lint tells of a missing one."""
    destination.mkdir(parents=True)
    for name in ENGINE_FILES:
        if (engine / name).is_file():
            shutil.copyfile(engine / name, destination / name)


def _within_context(limits: EngineLimits, context_length: int) -> EngineLimits:
    tokens = min(limits.maximum_tokens_per_request, context_length)
    return limits.model_copy(update={"maximum_tokens_per_request": tokens})


def _parameters(limits: EngineLimits, facts: Mapping[str, Fact]) -> dict[str, str]:
    """Python backends see parameters as strings; zero blocks let the runtime size its KV cache."""
    numbers = {**limits.model_dump(), "kv_cache_blocks": limits.kv_cache_blocks or 0}
    shown = {f"{FACT_PREFIX}{name}": "" if value is None else str(value) for name, value in facts.items()}
    return {name: str(value) for name, value in numbers.items()} | shown


def _input(tensor: Tensor) -> ModelInput:
    from tritonclient.grpc import model_config_pb2 as messages

    return messages.ModelInput(
        name=tensor.name,
        data_type=messages.DataType.Value(tensor.data_type),
        dims=tensor.dimensions,
        optional=tensor.optional,
    )


def _output(tensor: Tensor) -> ModelOutput:
    from tritonclient.grpc import model_config_pb2 as messages

    return messages.ModelOutput(
        name=tensor.name, data_type=messages.DataType.Value(tensor.data_type), dims=tensor.dimensions
    )


def _text(config: ModelConfig) -> str:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config, as_utf8=True)
    return text
