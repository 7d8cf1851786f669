"""What the rest of the package knows of the engine `vllm`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.endpoint_description import MODEL, PORT, ServeCommand, write_serve_command
from llm_pipeline.artifacts.repository_layout import (
    ALL_FEATURES,
    CHECKPOINT_DIRECTORY,
    COMPILED_DIRECTORY,
    ENGINE_DIRECTORY,
    MODEL_NAME,
    MODEL_VERSION,
)
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter, OwnServer, own_server_of
from llm_pipeline.serving.model_repository import PackagedEngine, copy_code, sampling_defaults, write_served_model
from llm_pipeline.serving.models.vllm_batcher import Settings
from llm_pipeline.serving.ports import LOOPBACK

_START_SECONDS = 55.0
"""Most of it is compilation: on an H200 with vLLM 0.20, 0.1B in 46 and 67 s, 8B in 47 and 69 s."""

_RUNTIME_BYTES = 3 * 2**28
"""CUDA graphs and workspaces; on an H200 with vLLM 0.20, 8B took 1.0 and 1.1 GiB and 0.1B 0.3 GiB."""

_SERVER = OwnServer("vllm", "vllm", "/metrics")
_NAMES_ITSELF = (0, 32)
"""From this version on vLLM's `system_fingerprint` can be given."""

_BUILDER = OnCall("llm_pipeline.adapters.vllm.builder:VllmBuilder")


def _write_repository(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the model with what vLLM compiled; the checkpoint is linked."""
    checkpoint = engine.description.checkpoint
    if checkpoint is None:
        raise IntegrityError("the engine names no checkpoint", where=str(engine.directory))
    version = write_served_model(engine, "vllm_model", repository, features=ALL_FEATURES)
    for name in ("vllm_batcher", "vllm_process"):
        copy_code(name, version / f"{name}.py")
    if (engine.directory / COMPILED_DIRECTORY).is_dir():
        shutil.copytree(engine.directory / COMPILED_DIRECTORY, version / ENGINE_DIRECTORY / COMPILED_DIRECTORY)
    if own_server_of(engine.target):
        write_serve_command(repository, _serve_command(engine))
    return {f"{MODEL_NAME}/{MODEL_VERSION}/{CHECKPOINT_DIRECTORY}": checkpoint}


def _serve_command(engine: PackagedEngine) -> ServeCommand:
    """`vllm serve` with what the build measured, and with the name and the defaults that our own endpoint has."""
    description, limits = engine.description, engine.limits
    properties = description.runtime_properties
    numbers = {**limits.model_dump(), "kv_cache_blocks": limits.kv_cache_blocks or 0}
    arguments: dict[str, Any] = {
        **Settings.of(properties, numbers).arguments,
        "served_model_name": engine.model,
        "override_generation_config": sampling_defaults(description.rules),
        "disable_uvicorn_access_log": True,
    }
    if engine.chat_template_arguments:
        arguments["default_chat_template_kwargs"] = dict(engine.chat_template_arguments)
    if release_numbers(description.facts.versions.get("vllm", "")) >= _NAMES_ITSELF:
        arguments |= {"fingerprint_mode": "custom", "fingerprint_value": engine.ref.digest[:12]}
    given = [word for name, value in sorted(arguments.items()) for word in _flag(name.replace("_", "-"), value)]
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": "../tmp",  # sockets' paths may have 107 bytes, and a slot may lie deep
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if threads := properties.get("threads"):
        variables |= {"OMP_NUM_THREADS": threads, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return ServeCommand(
        program=_SERVER.program,
        arguments=("serve", MODEL, "--host", LOOPBACK, "--port", PORT, *given),
        environment=variables,
        metrics_path=_SERVER.metrics_path,
    )


def _flag(name: str, value: Any) -> tuple[str, ...]:
    """An option of the command line."""
    if isinstance(value, bool):
        return (f"--{name}" if value else f"--no-{name}",)
    return (f"--{name}", value if isinstance(value, str) else json.dumps(value))


ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.vllm.plan:judge"),
    write_repository=_write_repository,
    runtime="vllm",
    beside_triton=True,
    own_server=_SERVER,
    words="vLLM",
    scores_prompts=True,
    reads={
        "runtime": frozenset(
            {"engine_args", "cuda_graphs", "kv_cache.free_memory_fraction", "kv_cache.reuse_blocks", "chunked_context"}
        ),
        "build": frozenset(),
    },
    holds_weights=False,
    start_seconds=_START_SECONDS,
    shares_whole_memory=True,
    runtime_bytes=_RUNTIME_BYTES,
)
