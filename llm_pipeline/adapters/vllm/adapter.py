"""What the rest of the package knows of the engine `vllm`."""

from __future__ import annotations

import shutil
from pathlib import Path

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
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter
from llm_pipeline.serving.model_repository import PackagedEngine, copy_code, special_tokens, write_served_model

_START_SECONDS = 55.0
"""Most of it is compilation: on an H200 with vLLM 0.20, 0.1B in 46 and 67 s, 8B in 47 and 69 s."""

_RUNTIME_BYTES = 3 * 2**28
"""CUDA graphs and workspaces; on an H200 with vLLM 0.20, 8B took 1.0 and 1.1 GiB and 0.1B 0.3 GiB."""

_BUILDER = OnCall("llm_pipeline.adapters.vllm.builder:VllmBuilder")


def _write_repository(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the model with what vLLM compiled; the checkpoint is linked."""
    checkpoint = engine.description.checkpoint
    if checkpoint is None:
        raise IntegrityError("the engine names no checkpoint", where=str(engine.directory))
    version = write_served_model(
        engine, "vllm_model", repository, features=ALL_FEATURES, parameters=special_tokens(engine.target)
    )
    for name in ("vllm_batcher", "vllm_process"):
        copy_code(name, version / f"{name}.py")
    if (engine.directory / COMPILED_DIRECTORY).is_dir():
        shutil.copytree(engine.directory / COMPILED_DIRECTORY, version / ENGINE_DIRECTORY / COMPILED_DIRECTORY)
    return {f"{MODEL_NAME}/{MODEL_VERSION}/{CHECKPOINT_DIRECTORY}": checkpoint}


ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.vllm.plan:judge"),
    write_repository=_write_repository,
    runtime="vllm",
    beside_triton=True,
    words="vLLM",
    scores_prompts=True,
    reads={
        "runtime": frozenset(
            {"cuda_graphs", "kv_cache.free_memory_fraction", "kv_cache.reuse_blocks", "chunked_context"}
        ),
        "build": frozenset(),
        "serving": frozenset({"add_special_tokens"}),
    },
    holds_weights=False,
    start_seconds=_START_SECONDS,
    shares_whole_memory=True,
    runtime_bytes=_RUNTIME_BYTES,
)
