"""A real engine, built once a session by the model environment's interpreter, and one that only looks real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def model_python() -> Path:
    return ROOT / ".envs/model/bin/python"


@pytest.fixture(scope="session")
def triton_home() -> Path:
    return ROOT / ".envs/triton"


@pytest.fixture(scope="session")
def tiny_engine(model_python, tmp_path_factory) -> Path:
    """An engine of a small random llama; `../checkpoint` is what it was built from."""
    directory = tmp_path_factory.mktemp("tiny")
    command = [str(model_python), "-W", "ignore", str(ROOT / "tests/engines/tiny_llama.py"), str(directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr, timeout=300)
    return directory / "engine"


@pytest.fixture
def pretended_engine(tmp_path) -> Path:
    """A directory that looks like an engine to everything that does not load it."""
    from llm_pipeline.config.target import Target
    from llm_pipeline.engines.builder import EngineDescription, EngineFacts
    from llm_pipeline.serving.repository_layout import OPENVINO_FILES

    engine = tmp_path / "engine"
    engine.mkdir()
    for name in OPENVINO_FILES:
        (engine / name).write_bytes(b"x")
    facts = EngineFacts(
        builder="openvino_cpu", bytes=1, weight_format="native", quantization="FP8",
        kv_cache="f32", context_length=128, device="a CPU", versions={}, seconds={},
        single_stream_tokens_per_second=1.0, batched_tokens_per_second=1.0, batched_sequences=1,
    )  # fmt: skip
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    EngineDescription(facts=facts, target=target).write(engine)
    return engine
