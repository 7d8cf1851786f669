"""A directory that looks like an engine to everything that does not load it."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.repository_layout import OPENVINO_FILES
from llm_pipeline.config.target import Target


def make_engine(directory: Path) -> Path:
    """Write it."""
    directory.mkdir()
    for name in OPENVINO_FILES:
        (directory / name).write_bytes(b"x")
    facts = EngineFacts(
        bytes=1, quantization="FP8",
        kv_cache="f32", context_length=128, device="a CPU", versions={}, seconds={},
    )  # fmt: skip
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    EngineDescription(facts=facts, target=target).write(directory)
    return directory
