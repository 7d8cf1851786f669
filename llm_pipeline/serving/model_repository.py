"""Triton model repositories, written through the protobuf that the server itself parses.

Every repository holds the model `llm`: `llm/config.pbtxt`, `llm/1/model.py`, `llm/1/endpoint.json` for OpenAI's API and
`llm/1/engine/engine.json`, and beside `llm/` the golden prompts, `release.json` (facts for people and tools) and, where
weights are not copied, `links.json`. The rest is written by the engine's adapter, with `write_served_model`. A
repository is read-only once written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from llm_pipeline.artifacts import golden as golden_prompts
from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.model_rules import ModelRules
from llm_pipeline.artifacts.repository_layout import (
    BASE_FILES,
    CONFIG_FILE,
    ENDPOINT_FILE,
    ENGINE_DIRECTORY,
    FACT_PREFIX,
    FACTS_FILE,
    FEATURES,
    INPUTS,
    MODEL_FILE,
    MODEL_NAME,
    MODEL_VERSION,
    OUTPUTS,
    Tensor,
)
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.serving.repository_links import write_links

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

Fact = str | int | float | bool | None

_CODE = Path(__file__).parent / "models"


def write_repository(
    engine: Path,
    golden: Sequence[GoldenPrompt],
    facts: Mapping[str, Fact],
    target: Target,
    destination: Path,
    *,
    engine_ref: ArtifactRef,
    model: str = MODEL_NAME,
    chat_template_arguments: Mapping[str, JsonValue] | None = None,
) -> dict[str, str | int]:
    """Write the model repository of an engine into the new directory `destination`.

    Args:
        engine: The engine directory, with `engine.json`.
        golden: Golden prompts, written beside the model.
        facts: Kept in `release.json` and shown as parameters `fact_<name>` of the model.
        target: What the server accepts at once, and how it queues and streams.
        destination: Directory to make.
        engine_ref: The engine's name in the store, for what is linked and not copied.
        model: The model's name at OpenAI's API.
        chat_template_arguments: What that API hands to the chat template by default.

    Returns:
        The model's name in Triton and its version; bytes, files and golden prompts, without what is linked; and the
        limit of tokens that the server enforces: the target's, or the model's if smaller.

    Raises:
        IntegrityError: The engine is not one.
        ConfigError: Options of the target do not fit together.
    """
    description = EngineDescription.read(engine)
    packaged = PackagedEngine(engine, engine_ref, description, target, facts, model, chat_template_arguments or {})
    destination.mkdir()
    write_links(destination, engine_adapter(description.target.engine).write_repository(packaged, destination))
    golden_prompts.write_golden(destination, golden)
    (destination / FACTS_FILE).write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    files = [path for path in destination.rglob("*") if path.is_file()]
    return {
        "model": MODEL_NAME,
        "version": MODEL_VERSION,
        "repository_bytes": sum(path.stat().st_size for path in files),
        "files": len(files),
        "golden_prompts": len(golden),
        "maximum_tokens_per_request": packaged.limits.maximum_tokens_per_request,
    }


@dataclass(frozen=True)
class PackagedEngine:
    """An engine that is written into a model repository.

    Attributes:
        directory: Its files.
        ref: Its name in the store, for repositories that link to it.
        description: Its `engine.json`.
        target: What serves it, with the limits and options of now.
        facts: Shown as parameters `fact_<name>` of the model.
        model: The model's name at OpenAI's API.
        chat_template_arguments: What that API hands to the chat template by default.
    """

    directory: Path
    ref: ArtifactRef
    description: EngineDescription
    target: Target
    facts: Mapping[str, Fact]
    model: str = MODEL_NAME
    chat_template_arguments: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def limits(self) -> EngineLimits:
        """The target's limits; no request may be longer than the model's context."""
        limits = self.target.limits
        tokens = min(limits.maximum_tokens_per_request, self.description.facts.context_length)
        return limits.model_copy(update={"maximum_tokens_per_request": tokens})


def write_served_model(
    engine: PackagedEngine, code: str | Path, repository: Path, *, features: Collection[str] = ()
) -> Path:
    """Write the model `llm`, the engine's description and the endpoint's; returns its version directory.

    Args:
        engine: The engine.
        code: Its `model.py`: the file, or the name of one of `serving/models`.
        repository: The model repository.
        features: What it takes of `FEATURES`, by name; the server refuses the others.
    """
    from google.protobuf import text_format

    version = repository / MODEL_NAME / str(MODEL_VERSION)
    (version / ENGINE_DIRECTORY).mkdir(parents=True)
    engine.description.write(version / ENGINE_DIRECTORY)
    copy_code(code, version / MODEL_FILE)
    for file in BASE_FILES:
        copy_code(file.removesuffix(".py"), version / file)
    rules = engine.description.rules
    endpoint = EndpointDescription(
        model=engine.model,
        release=engine.ref.digest[:12],
        chat=rules.chat,
        chat_template_arguments=dict(engine.chat_template_arguments),
        sampling=sampling_defaults(rules),
        features=tuple(features),
        maximum_tokens_per_request=engine.limits.maximum_tokens_per_request,
        maximum_sequences=engine.limits.maximum_sequences,
    )
    (version / ENDPOINT_FILE).write_text(endpoint.model_dump_json(indent=1) + "\n", encoding="utf-8")
    text = text_format.MessageToString(served_config(engine, features))
    (repository / MODEL_NAME / CONFIG_FILE).write_text(text, encoding="utf-8")
    return version


def sampling_defaults(rules: ModelRules) -> dict[str, int | float]:
    """What requests have that do not say; an answer may be as long as the server takes it."""
    return rules.sampling.model_dump(exclude_none=True, exclude={"do_sample", "max_new_tokens"})


def served_config(engine: PackagedEngine, features: Collection[str]) -> ModelConfig:
    """The configuration of the model `llm` as Triton's own message."""
    from tritonclient.grpc import model_config_pb2 as messages

    def tensor_fields(tensor: Tensor) -> dict[str, Any]:
        kind = messages.DataType.Value(tensor.data_type)
        return {"name": tensor.name, "data_type": kind, "dims": tensor.dimensions}

    inputs = [*INPUTS, *(tensor for tensor in FEATURES if tensor.name in features)]
    config = messages.ModelConfig(
        name=MODEL_NAME,
        backend="python",
        max_batch_size=0,
        input=[messages.ModelInput(**tensor_fields(tensor), optional=tensor.optional) for tensor in inputs],
        output=[messages.ModelOutput(**tensor_fields(tensor)) for tensor in OUTPUTS],
        instance_group=[messages.ModelInstanceGroup(kind=messages.ModelInstanceGroup.KIND_CPU, count=1)],
    )
    config.model_transaction_policy.decoupled = True
    config.version_policy.latest.num_versions = 1
    # Python backends see parameters as strings; zero blocks let the runtime size its KV cache.
    numbers = {**engine.limits.model_dump(), "kv_cache_blocks": engine.limits.kv_cache_blocks or 0}
    shown = {f"{FACT_PREFIX}{name}": "" if value is None else value for name, value in engine.facts.items()}
    for name, text in {**numbers, **shown}.items():
        config.parameters[name].string_value = str(text)
    return config


def copy_code(code: str | Path, destination: Path) -> None:
    """Copy a file, or one of `serving/models` by its name."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(code if isinstance(code, Path) else _CODE / f"{code}.py", destination)
