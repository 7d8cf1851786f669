"""A hub on this machine that has a model of 70B: 30 weight files of its sizes, which take no space on the disk."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import prod
from pathlib import Path

import yaml

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.demo.hub_repository import HubCommit, HubEntry
from llm_pipeline.hub.git_ids import blob_id, commit_id, lfs_pointer
from llm_pipeline.model_facts.layout import Shaped, expected_tensors
from llm_pipeline.model_facts.words import ConfigWords

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
FILES = 30
EVALUATION = {"task_directory": "tasks/demo", "tasks": ["demo_generate"], "served_tasks": ["demo_generate"]}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@contextmanager
def hub_process(root: Path) -> Iterator[str]:
    """The endpoint of a hub with the repositories below a directory, while it runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llm_pipeline.demo.hub_server", "--root", str(root), "--port", str(port)]
    server = subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def release_on(endpoint: str, configs: Path, copy: Path) -> Path:
    """The example release of that model, in a copy of the configs whose deployment asks that hub."""
    shutil.copytree(configs, copy)
    deployment = copy / "deployments" / "gpu-cluster.yaml"
    deployment.write_text(deployment.read_text().replace("hub:\n", f"hub:\n  endpoint: {endpoint}\n", 1))
    release = copy / "releases" / "llama-3.3-70b-instruct.yaml"
    document = yaml.safe_load(release.read_text())
    document["evaluation"] = EVALUATION  # this hub has no data sets
    release.write_text(yaml.safe_dump(document, sort_keys=False))
    return release


def publish(root: Path) -> None:
    """Write the repository as the hub keeps it. What would be hashed is not: nobody fetches it."""
    repository = root / MODEL
    (repository / "blobs").mkdir(parents=True)
    tensors = expected_tensors(ConfigWords(CONFIG)) or []
    each = -(-len(tensors) // FILES)
    entries = [_small(repository, "config.json", json.dumps(CONFIG).encode())]
    entries.append(_small(repository, "tokenizer_config.json", b'{"chat_template": "{{ messages }}"}'))
    for number in range(FILES):
        name = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        entries.append(_sparse(repository, name, tensors[number * each : (number + 1) * each]))
    commit = commit_id({entry.path: entry.oid for entry in entries})
    record = HubCommit(id=commit, message="70B", created_at=datetime.now(UTC), files=tuple(entries))
    (repository / "commits").mkdir()
    (repository / "commits" / f"{commit}.json").write_text(record.model_dump_json())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


def _small(repository: Path, path: str, content: bytes) -> HubEntry:
    digest = sha256_bytes(content)
    (repository / "blobs" / digest).write_bytes(content)
    return HubEntry(path=path, size=len(content), sha256=digest, oid=blob_id(content), large=False)


def _sparse(repository: Path, path: str, tensors: list[Shaped]) -> HubEntry:
    header, end = {}, 0
    for name, shape in tensors:
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    digest, size = sha256_bytes(path.encode()), 8 + len(text) + end
    with (repository / "blobs" / digest).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(size)
    pointer = lfs_pointer(digest, size)
    return HubEntry(path=path, size=size, sha256=digest, oid=blob_id(pointer), large=True, pointer_size=len(pointer))


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError("the hub did not start")
