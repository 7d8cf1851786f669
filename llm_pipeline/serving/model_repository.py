"""Triton model repositories: written through the protobuf that the server itself parses, and linted before use.

Every repository holds the model `llm`: `llm/config.pbtxt`, `llm/1/model.py` and `llm/1/engine/engine.json`, and beside
`llm/` the golden prompts, `release.json` (facts for people and tools) and, where weights are not copied, `links.json`.
The rest is written by the engine's adapter. A repository is read-only once written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.artifacts import golden as golden_prompts
from llm_pipeline.artifacts.engine_description import ENGINE_FILE, EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.repository_layout import (
    BASE_FILES,
    CONFIG_FILE,
    ENGINE_DIRECTORY,
    FACTS_FILE,
    INPUTS,
    LIMIT_PARAMETERS,
    MODEL_FILE,
    MODEL_NAME,
    MODEL_VERSION,
    OUTPUTS,
)
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.serving.lint import lint_repository_directory
from llm_pipeline.serving.lint.parsing import enum_name
from llm_pipeline.serving.lint.repository import ModelSource, read_repository
from llm_pipeline.serving.repositories.packaged import Fact, PackagedEngine
from llm_pipeline.serving.repository_links import read_links, write_links

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

__all__ = ["Fact", "RepositoryFacts", "lint_repository", "write_repository"]


@dataclass(frozen=True)
class RepositoryFacts:
    """Name, size and limits of a model repository that was written.

    Attributes:
        model: The model's name in Triton.
        version: Its version.
        bytes: Size of all files, without what is linked.
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
    target: Target,
    destination: Path,
    *,
    engine_ref: ArtifactRef,
) -> RepositoryFacts:
    """Write the model repository of an engine into the new directory `destination`, and lint it.

    Args:
        engine: The engine directory, with `engine.json`.
        golden: Golden prompts, written beside the model.
        facts: Kept in `release.json` and shown as parameters `fact_<name>` of the model.
        target: What the server accepts at once, and how it queues and streams.
        destination: Directory to make.
        engine_ref: The engine's name in the store, for what is linked and not copied.

    Raises:
        IntegrityError: The engine is not one, or the result breaks a rule of the server.
        ConfigError: Options of the target do not fit together.
    """
    packaged = PackagedEngine(engine, engine_ref, EngineDescription.read(engine), target, facts)
    destination.mkdir()
    write_links(destination, engine_adapter(packaged.description.facts.builder).write_repository(packaged, destination))
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
        maximum_tokens_per_request=packaged.limits.maximum_tokens_per_request,
    )


_NEVER_OURS = ("symbolic_link", "tensor_twice")
"""Rules that only warn in other people's repositories."""


def lint_repository(directory: Path) -> list[str]:
    """Every rule that the model repository in `directory` breaks; empty for a sound one."""
    if not (directory / MODEL_NAME / CONFIG_FILE).is_file():
        return [f"{MODEL_NAME}/{CONFIG_FILE} is missing"]
    general = [*_general_problems(directory)]
    model = read_repository(directory).models[MODEL_NAME]
    if not model.is_readable:
        return general
    return [*general, *_config_problems(model.config), *_file_problems(model), *_link_problems(directory)]


def _general_problems(directory: Path) -> Iterator[str]:
    """Broken rules of any repository; two that only warn elsewhere are errors in ours."""
    for finding in lint_repository_directory(directory):
        if finding.severity == "error" or finding.rule in _NEVER_OURS:
            yield f"{finding.place} {finding.rule}: {finding.message}"


def _config_problems(config: ModelConfig) -> Iterator[str]:
    if config.backend != "python":
        yield f"backend is {config.backend!r}; {MODEL_FILE} needs python"
    if not config.model_transaction_policy.decoupled:
        yield "the transaction policy is not decoupled: streaming would abort"
    if config.max_batch_size != 0:
        yield f"max_batch_size is {config.max_batch_size}: the engine batches by itself, so it must be 0"
    sets = [one for one in config.parameters["gpu_device_ids"].string_value.split(";") if one]
    if any(group.kind != group.KIND_CPU or group.count != (len(sets) or 1) for group in config.instance_group):
        yield (
            f"the instance group must be {len(sets) or 'one'} of KIND_CPU, one for each set of gpu_device_ids: "
            "every instance loads an engine of its own"
        )
    for name in LIMIT_PARAMETERS:
        if not config.parameters[name].string_value.isdecimal():
            yield f"parameter {name} is missing or not a whole number"
    yield from _tensor_problems(config)


def _tensor_problems(config: ModelConfig) -> Iterator[str]:
    from tritonclient.grpc import model_config_pb2 as messages

    for kind, want, have in (("input", INPUTS, config.input), ("output", OUTPUTS, config.output)):
        tensors = {tensor.name: tensor for tensor in have}
        for tensor in want:
            found = tensors.pop(tensor.name, None)
            if found is None:
                yield f"{kind} {tensor.name} is missing"
            elif (enum_name(messages.DataType, found.data_type), tuple(found.dims)) != (
                tensor.data_type,
                tensor.dimensions,
            ):
                yield f"{kind} {tensor.name} is not {tensor.data_type} {list(tensor.dimensions)}"
            elif kind == "input" and found.optional != tensor.optional:
                yield f"input {tensor.name} must be {'optional' if tensor.optional else 'required'}"
        yield from (f"{kind} {name} is not one that {MODEL_FILE} knows" for name in tensors)


def _file_problems(model: ModelSource) -> Iterator[str]:
    for version in model.versions:
        for name in _needed(version):
            path = version / name
            if not path.is_file() or path.stat().st_size == 0:
                yield f"{version.name}/{name} is missing or empty"


def _needed(version: Path) -> tuple[str, ...]:
    """What must lie beside `model.py`, which says itself what it reads."""
    try:
        builder = EngineDescription.read(version / ENGINE_DIRECTORY).facts.builder
    except IntegrityError:
        return (*BASE_FILES, f"{ENGINE_DIRECTORY}/{ENGINE_FILE}")
    return (*BASE_FILES, *engine_adapter(builder).files)


def _link_problems(directory: Path) -> Iterator[str]:
    try:
        links = read_links(directory)
    except IntegrityError as error:
        yield error.message
        return
    yield from (f"{name} is linked, but it is there already" for name in links if (directory / name).exists())
    yield from (f"{name} is linked, but its directory is missing" for name in links
                if not (directory / name).parent.is_dir())  # fmt: skip
