"""The local hub, asked by the real client and checked against Git."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.hub.git_ids import blob_id

huggingface_hub = pytest.importorskip("huggingface_hub")

from free_ports import free_port
from waiting import until

MODEL = "demo/tiny"
FILES = {
    "README.md": b"---\nlicense: mit\ntags:\n- demo\n---\n# Tiny\n",
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 4096,
    "original/params.json": b"{}",
    "a-b": b"",
    "a/x": b"sorted after a-b, as Git sorts directories",
}


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, str]]:
    """The server as its own process: endpoint, root, published commit."""
    root = tmp_path_factory.mktemp("hub")
    commit = publish_revision(root, MODEL, write(tmp_path_factory.mktemp("source"), FILES), "First release")
    port = free_port()
    command = [sys.executable, "-m", "llm_pipeline.demo.hub", "--root", str(root), "--port", str(port)]
    process = subprocess.Popen(command)
    endpoint = f"http://127.0.0.1:{port}"
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    yield endpoint, root, commit
    process.terminate()
    assert process.wait(120) == 0


@pytest.fixture
def api(server: tuple[str, Path, str]) -> huggingface_hub.HfApi:
    return huggingface_hub.HfApi(endpoint=server[0], token=False)


def test_model_information_has_the_commit_the_license_and_the_files(
    api: huggingface_hub.HfApi, server: tuple[str, Path, str]
) -> None:
    info = api.model_info(MODEL, files_metadata=True)
    assert (info.sha, info.card_data.license, info.gated) == (server[2], "mit", False)
    by_name = {sibling.rfilename: sibling for sibling in info.siblings}
    assert set(by_name) == set(FILES)
    weights = by_name["model.safetensors"]
    assert weights.lfs.sha256 == hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert by_name["config.json"].lfs is None
    assert by_name["config.json"].blob_id == blob_id(FILES["config.json"])


@pytest.mark.parametrize("into", ["cache", "directory"])
def test_the_client_downloads_a_whole_snapshot(server: tuple[str, Path, str], tmp_path: Path, into: str) -> None:
    where = {"cache_dir": tmp_path} if into == "cache" else {"local_dir": tmp_path}
    path = Path(huggingface_hub.snapshot_download(MODEL, endpoint=server[0], token=False, **where))
    assert {name: (path / name).read_bytes() for name in FILES} == FILES


def test_a_repository_id_cannot_leave_the_root(server: tuple[str, Path, str]) -> None:
    for path in ("/api/models/../..", "/api/models/..%2f..%2fetc/passwd", "/demo/tiny/resolve/main/..%2f..%2fx"):
        with pytest.raises(OSError, match=r"40[14]"):
            urllib.request.urlopen(server[0] + path)
