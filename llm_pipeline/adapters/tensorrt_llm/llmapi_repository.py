"""The repository of TensorRT-LLM's LLM API: one model beside its arguments and a link to the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from llm_pipeline.artifacts.endpoint_description import MODEL, PORT, ServeCommand, write_serve_command
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY, LLM_FILE, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import ConfigError, IntegrityError, unless_io
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.yaml_document import parse_yaml
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.engines.builder import OwnServer, own_server_of
from llm_pipeline.serving.model_repository import PackagedEngine, write_served_model
from llm_pipeline.serving.ports import LOOPBACK

FEATURES = ("input_ids", "top_p", "top_k", "seed")
SAMPLER_FEATURES = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Inputs that the model `llm` takes beside those of all engines. The default sampler ignores the second before 1.3."""

SERVER = OwnServer("trtllm", "trtllm-serve", "/prometheus/metrics")
_OPTIONS_FILE = "serve_options.yaml"
"""Beside `serve.json`: the arguments of `LLM`, and what makes the server count."""

LLM_ARGUMENTS_FILE = "llm_args.yaml"
"""In the engine: the arguments of `LLM` as they were checked by the build."""


def write_llm_api(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the model; returns what it links to.

    Raises:
        IntegrityError: The engine names no checkpoint, or has no arguments.
    """
    checkpoint = engine.description.checkpoint
    if checkpoint is None:
        raise IntegrityError("the engine names no checkpoint", where=str(engine.directory))
    document = {**read_arguments(engine.directory), "model": CHECKPOINT_DIRECTORY}
    features: tuple[str, ...] = FEATURES
    if document.get("sampler_type") == "TRTLLMSampler" or release_numbers(engine.target.runtime_version or "") >= (
        1,
        3,
    ):
        features += SAMPLER_FEATURES
    version = write_served_model(engine, "llmapi_model", repository, features=features)
    (version / LLM_FILE).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    if own_server_of(engine.target):
        options = {**read_arguments(engine.directory), "return_perf_metrics": True, "enable_iter_perf_stats": True}
        (version / _OPTIONS_FILE).write_text(yaml.safe_dump(options, sort_keys=False), encoding="utf-8")
        file = f"{MODEL_NAME}/{MODEL_VERSION}/{_OPTIONS_FILE}"
        arguments = (MODEL, "--host", LOOPBACK, "--port", PORT, "--extra_llm_api_options", file)
        command = ServeCommand(program=SERVER.program, arguments=arguments, metrics_path=SERVER.metrics_path)
        write_serve_command(repository, command)
    return {f"{MODEL_NAME}/{MODEL_VERSION}/{CHECKPOINT_DIRECTORY}": checkpoint}


def read_arguments(engine: Path) -> dict[str, Any]:
    """The arguments of `LLM` in an engine.

    Raises:
        IntegrityError: The file is missing, or holds no mapping.
    """
    path = engine / LLM_ARGUMENTS_FILE
    try:
        document = parse_yaml(path.read_bytes(), where=str(path)).value
    except (OSError, ConfigError) as error:
        raise unless_io(
            error, IntegrityError(f"the engine has no arguments for LLM: {error}", where=str(path))
        ) from error
    if not isinstance(document, dict):
        raise IntegrityError("the arguments for LLM are not a mapping", where=str(path))
    return document
