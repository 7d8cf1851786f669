"""The repositories of engines that batch tokens: one model, its batcher, and a link to the checkpoint that it loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import (
    BATCHER_FILE,
    CHECKPOINT_DIRECTORY,
    COMPILED_DIRECTORY,
    ENGINE_DIRECTORY,
    MODEL_NAME,
    MODEL_VERSION,
    VLLM_PROCESS_FILE,
)
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.serving.repositories.packaged import PackagedEngine, copy_code, text_switches, write_served_model

_CODE: Mapping[EngineBuilderName, Mapping[str, str]] = {
    "transformers_torch": {"transformers_batcher": BATCHER_FILE},
    "vllm": {"vllm_batcher": BATCHER_FILE, "vllm_process": VLLM_PROCESS_FILE},
}
"""The files beside `model.py`, by the code that they are copied from."""


def write(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the model; returns what it links to.

    Raises:
        IntegrityError: The engine names no checkpoint.
    """
    checkpoint = engine.description.checkpoint
    if checkpoint is None:
        raise IntegrityError("the engine names no checkpoint", where=str(engine.directory))
    serving = engine.target.serving
    parameters = {
        **text_switches(serving),
        "cancellation_check_milliseconds": str(serving.cancellation_check_milliseconds),
    }
    version = write_served_model(engine, "batched_model", repository, parameters=parameters)
    for code, file in _CODE[engine.description.facts.builder].items():
        copy_code(code, version / file)
    if (engine.directory / COMPILED_DIRECTORY).is_dir():
        shutil.copytree(engine.directory / COMPILED_DIRECTORY, version / ENGINE_DIRECTORY / COMPILED_DIRECTORY)
    return {f"{MODEL_NAME}/{MODEL_VERSION}/{CHECKPOINT_DIRECTORY}": checkpoint}
