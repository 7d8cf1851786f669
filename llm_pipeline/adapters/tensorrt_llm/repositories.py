"""The model repositories of TensorRT-LLM: of its LLM API, and of a compiled engine.

The LLM API has one model beside its arguments, and a link to the checkpoint. A compiled engine has our model `llm`, and
the classic set for clients that use it: `tensorrt_llm` runs the engine, which is linked and not copied; `llm` and
`tensorrt_llm_bls` call it, and `ensemble` wires it to `preprocessing` and `postprocessing`. The set's configurations
are filled from `templates/`. Paths in them are relative to the repository, which must be the server's working
directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from llm_pipeline.artifacts.endpoint_description import MODEL, PORT, ServeCommand, write_serve_command
from llm_pipeline.artifacts.repository_layout import (
    CHECKPOINT_DIRECTORY,
    CONFIG_FILE,
    ENGINE_DIRECTORY,
    ENGINE_MODEL,
    LLM_FILE,
    MODEL_FILE,
    MODEL_NAME,
    MODEL_VERSION,
    TOKENIZER_DIRECTORY,
)
from llm_pipeline.base.errors import ConfigError, IntegrityError, unless_io
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.yaml_document import parse_yaml
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import OwnServer, own_server_of
from llm_pipeline.serving.launch_plan import nodes_of
from llm_pipeline.serving.model_repository import PackagedEngine, copy_code, write_served_model
from llm_pipeline.serving.ports import LOOPBACK

LLM_API_FEATURES = ("input_ids", "top_p", "top_k", "seed")
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
    features: tuple[str, ...] = LLM_API_FEATURES
    newer = release_numbers(engine.target.runtime_version or "") >= (1, 3)
    if newer or document.get("sampler_type") == "TRTLLMSampler":
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


ENGINE_FEATURES = ("input_ids", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Inputs that the model `llm` takes beside those of all engines."""

_TEMPLATES = Path(__file__).parent / "templates"
_ENGINE = f"{ENGINE_MODEL}/{MODEL_VERSION}/{ENGINE_DIRECTORY}"
_TOKENIZER = f"{MODEL_NAME}/{MODEL_VERSION}/{TOKENIZER_DIRECTORY}"
_CODE = {
    MODEL_NAME: ("engine_tokenizer", "engine_call"),
    "preprocessing": ("preprocessing_model", "engine_tokenizer"),
    "postprocessing": ("postprocessing_model", "engine_tokenizer"),
    "tensorrt_llm_bls": ("bls_model", "engine_call", "llm_model_base"),
}
"""Files of `serving/models` by the model that they are copied to."""

LogitsType = Literal["float16", "float32", "bfloat16"]
_TRITON_TYPES: dict[LogitsType, str] = {"float16": "TYPE_FP16", "float32": "TYPE_FP32", "bfloat16": "TYPE_BF16"}


class _PretrainedConfig(BaseModel):
    model_config = ConfigDict(frozen=True)  # not `Frozen`: TensorRT-LLM writes many more fields

    logits_dtype: LogitsType = "float32"


class _EngineConfig(BaseModel):
    """What is read of the engine's own `config.json`."""

    model_config = ConfigDict(frozen=True)  # not `Frozen`, as above

    pretrained_config: _PretrainedConfig


def write_engine_set(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the models; returns what they link to.

    Raises:
        IntegrityError: The engine has no `config.json`.
    """
    config = load_record(_EngineConfig, engine.directory / "config.json", "not an engine of TensorRT-LLM")
    write_served_model(engine, "engine_model", repository, features=ENGINE_FEATURES)
    shutil.copytree(engine.directory / TOKENIZER_DIRECTORY, repository / _TOKENIZER)
    values = template_values(engine.target, config.pretrained_config.logits_dtype)
    for template in _TEMPLATES.glob("*.pbtxt"):
        model = repository / template.stem
        model.mkdir()
        (model / CONFIG_FILE).write_text(Template(template.read_text(encoding="utf-8")).substitute(values))
    for name, files in _CODE.items():
        for file in files:  # a model's own code is its `model.py`, and `llm` has its own already
            place = MODEL_FILE if file.endswith("_model") else f"{file}.py"
            copy_code(file, repository / name / str(MODEL_VERSION) / place)
    # The server wants a version directory although it is empty, and a store keeps no empty ones.
    for without_code, text in {
        "ensemble": "An ensemble has no code: its wiring is in config.pbtxt.",
        ENGINE_MODEL: f"The engine is linked as {ENGINE_DIRECTORY}/ when a server starts.",
    }.items():
        version = repository / without_code / str(MODEL_VERSION)
        version.mkdir()
        (version / "about.txt").write_text(f"{text}\n", encoding="utf-8")
    return {_ENGINE: engine.ref}


def template_values(target: Target, logits_type: LogitsType) -> dict[str, object]:
    """What the templates of the set name."""
    runtime = target.runtime
    return {
        "engine": _ENGINE,
        "tokenizer": _TOKENIZER,
        "logits": _TRITON_TYPES[logits_type],
        "sequences": target.limits.maximum_sequences,
        "nodes": nodes_of(target),
        "scheduler": runtime.scheduler,
        "chunked_context": str(runtime.chunked_context).lower(),
        "reuse_blocks": str(runtime.kv_cache.reuse_blocks).lower(),
        "free_memory_fraction": runtime.kv_cache.free_memory_fraction,
    }
