"""Engines and repositories to everything that does not load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.repository_layout import OPENVINO_FILES
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.serving.repository_links import write_links
from llm_pipeline.store.artifact_store import ArtifactStore


def make_engine(directory: Path) -> Path:
    """Write it."""
    directory.mkdir()
    for name in OPENVINO_FILES:
        (directory / name).write_bytes(b"x")
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    EngineDescription(facts=engine_facts(quantization="FP8"), target=target).write(directory)
    return directory


def engine_facts(**changes: Any) -> EngineFacts:
    """What a builder says that it built."""
    made = {"bytes": 1, "quantization": None, "kv_cache": "auto", "context_length": 128, "device": "a GPU"}
    return EngineFacts(**{**made, "versions": {}, "seconds": {}, **changes})


def linked_repository(store: ArtifactStore, root: Path) -> ArtifactRef:
    """A published repository that links to a checkpoint."""
    checkpoint, repository = root / "checkpoint", root / "repository"
    for path, text in ((checkpoint / "model.safetensors", "weights"), (repository / "llm/1/model.py", "code")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    write_links(repository, {"llm/1/checkpoint": store.publish("checkpoint", checkpoint)})
    return store.publish("model_repository", repository)
