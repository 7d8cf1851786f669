"""A real engine, built once a session by the model environment's interpreter, and one that only looks real."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
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
    """An engine of a small random llama; `../checkpoint` is what it was built from. Made once for all processes."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_TESTRUNUID" in os.environ else base) / "tiny"
    made = directory / "made"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            command = [str(model_python), "-W", "ignore", str(ROOT / "tests/engines/tiny_llama.py"), str(directory)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            subprocess.run(command, check=True, env=environment, stdout=sys.stderr, timeout=300)
            made.touch()
    return directory / "engine"


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Writes the repository of an engine."""
    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.serving.model_repository import write_repository

    def package(engine, target, golden=(), **options) -> Path:
        repository, facts = tmp_path_factory.mktemp("packaged") / "repository", {"quantization": "FP8"}
        ref = ArtifactRef(kind="engine", digest="e" * 64)
        write_repository(engine, golden, facts, target, repository, engine_ref=ref, **options)
        return repository

    return package


@pytest.fixture(scope="module")
def start(model_python, triton_home, tmp_path_factory):
    """Starts servers of repositories, each in a slot of its own; they end with the module's tests."""
    from free_ports import server_ports

    from llm_pipeline.serving.triton_server import start_server, stop_server

    slots = []

    def start(repository, *readable, **options):
        slots.append(tmp_path_factory.mktemp("slots") / "slot")
        software = {"triton_home": triton_home, "python": model_python}
        return start_server(repository, server_ports(*readable), state=slots[-1], **software, **options)

    yield start
    for slot in slots:
        stop_server(slot)


@pytest.fixture
def pretended_engine(tmp_path) -> Path:
    from pretended_engine import make_engine

    return make_engine(tmp_path / "engine")


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level tokenizers (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> Path:
    """Files of a tokenizer whose tokens are bytes, after `<s>` (0) and `</s>` (1)."""
    directory = tmp_path_factory.mktemp("tokenizer")
    special = [
        {"id": number, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, token in enumerate(["<s>", "</s>"])
    ]  # fmt: skip
    vocabulary = ["<s>", "</s>", *_byte_alphabet()]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document = {
        "version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": None, "decoder": byte_level, "truncation": None, "padding": None,
        "model": {"type": "BPE", "vocab": {token: number for number, token in enumerate(vocabulary)}, "merges": []},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(document))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return directory


@pytest.fixture(scope="session")
def gpu_engine(tmp_path_factory):
    """Makes the description of a GPU target's engine, in a new directory."""
    from pretended_engine import engine_facts

    from llm_pipeline.artifacts.engine_description import EngineDescription
    from llm_pipeline.artifacts.model_rules import ModelRules
    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.config.target import Target

    def make(builder: str, properties: dict[str, str] | None = None, **options) -> tuple[Path, Target]:
        engine = tmp_path_factory.mktemp(builder)
        limits = {"maximum_sequences": 4, "maximum_queued_requests": 4, "maximum_tokens_per_request": 4096}
        target = Target(
            name="h100", accelerator="H100-SXM5-80GB", engine=builder, runtime_version="1.2.1", limits=limits, **options
        )
        facts = engine_facts(quantization="FP8", kv_cache="fp8", context_length=512, versions={"tensorrt_llm": "1.2.1"})
        checkpoint = ArtifactRef(kind="checkpoint", digest="c" * 64)
        EngineDescription(
            facts=facts, target=target, runtime_properties=properties or {}, rules=ModelRules(end_tokens=(1,)),
            checkpoint=checkpoint,
        ).write(engine)  # fmt: skip
        return engine, target

    return make


@pytest.fixture(scope="session")
def bytes_checkpoint(byte_tokenizer, tmp_path_factory) -> Path:
    """A checkpoint of no weights to speak of, for doubles of engines."""
    directory = tmp_path_factory.mktemp("bytes") / "checkpoint"
    shutil.copytree(byte_tokenizer, directory)
    (directory / "config.json").write_text('{"eos_token_id": 1, "vocab_size": 258}')
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory
