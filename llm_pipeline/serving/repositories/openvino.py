"""The repository of an OpenVINO engine: one model, which holds the engine's files."""

from __future__ import annotations

import shutil
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import ENGINE_DIRECTORY, OPENVINO_FILES, TOKENIZER_FILE
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.serving.repositories.packaged import PackagedEngine, write_served_model


def write(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the models; the runtime's files only, for a store keeps its own beside them. Nothing is linked."""
    version = write_served_model(engine, "openvino_model", repository)
    for name in (*OPENVINO_FILES, TOKENIZER_FILE):
        if (engine.directory / name).is_file():  # the lint tells of a missing one
            shutil.copyfile(engine.directory / name, version / ENGINE_DIRECTORY / name)
    return {}
