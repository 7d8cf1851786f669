"""The repository of Transformers: one model, its batcher, and a link to the checkpoint that they load."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.errors import IntegrityError
from llm_pipeline.serving.repositories.packaged import PackagedEngine, copy_code, text_switches, write_served_model
from llm_pipeline.serving.repository_layout import BATCHER_FILE, CHECKPOINT_DIRECTORY, MODEL_NAME, MODEL_VERSION
from llm_pipeline.stages.contract import ArtifactRef


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
    version = write_served_model(engine, "transformers_model", repository, parameters=parameters)
    copy_code("transformers_batcher", version / BATCHER_FILE)
    return {f"{MODEL_NAME}/{MODEL_VERSION}/{CHECKPOINT_DIRECTORY}": checkpoint}
