"""The local hub, asked by the real client and checked against Git."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.demo.hub import HubAccessRules, publish_revision, restrict
from llm_pipeline.hub.git_ids import blob_id

huggingface_hub = pytest.importorskip("huggingface_hub")

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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llm_pipeline.demo.hub", "--root", str(root), "--port", str(port)]
    process = subprocess.Popen(command)
    endpoint = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{endpoint}/api/models/{MODEL}", timeout=30).close()
            break
        except OSError:
            time.sleep(0.05)
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


def test_one_file_has_the_hub_s_metadata(server: tuple[str, Path, str]) -> None:
    for name in ("model.safetensors", "config.json"):
        url = huggingface_hub.hf_hub_url(MODEL, name, endpoint=server[0])
        metadata = huggingface_hub.get_hf_file_metadata(url, token=False)
        assert metadata.commit_hash == server[2]
        assert metadata.size == len(FILES[name])
    assert metadata.etag == blob_id(FILES["config.json"])


def test_ranges_are_served(server: tuple[str, Path, str]) -> None:
    url = huggingface_hub.hf_hub_url(MODEL, "model.safetensors", endpoint=server[0])
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=1000-"})) as answer:
        assert answer.status == 206
        assert answer.read() == FILES["model.safetensors"][1000:]
        assert answer.headers["ETag"] == f'"{hashlib.sha256(FILES["model.safetensors"]).hexdigest()}"'


def test_missing_things_are_the_client_s_own_errors(api: huggingface_hub.HfApi, server: tuple[str, Path, str]) -> None:
    errors = huggingface_hub.errors
    with pytest.raises(errors.RepositoryNotFoundError):
        api.model_info("demo/missing")
    with pytest.raises(errors.RevisionNotFoundError):
        api.model_info(MODEL, revision="v9")
    with pytest.raises(errors.RemoteEntryNotFoundError):
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(MODEL, "no.json", endpoint=server[0]))


def test_restricted_repositories_answer_as_the_hub_does(server: tuple[str, Path, str], tmp_path: Path) -> None:
    endpoint, root, _ = server
    errors = huggingface_hub.errors
    reader = HubAccessRules(readers=(sha256_bytes(b"hf_reader"),))
    for name in ("gated", "private", "disabled"):
        publish_revision(root, f"demo/{name}", write(tmp_path, FILES), "one")
    restrict(root, "demo/gated", reader.model_copy(update={"gated": "manual"}))
    restrict(root, "demo/private", reader.model_copy(update={"private": True}))
    restrict(root, "demo/disabled", HubAccessRules(disabled=True))
    stranger = huggingface_hub.HfApi(endpoint=endpoint, token="hf_stranger")
    member = huggingface_hub.HfApi(endpoint=endpoint, token="hf_reader")
    assert stranger.model_info("demo/gated").gated == "manual"
    gated = huggingface_hub.hf_hub_url("demo/gated", "config.json", endpoint=endpoint)
    with pytest.raises(errors.GatedRepoError):
        huggingface_hub.get_hf_file_metadata(gated, token="hf_stranger")
    with pytest.raises(errors.RepositoryNotFoundError) as caught:
        stranger.model_info("demo/private")
    assert not isinstance(caught.value, errors.GatedRepoError)
    with pytest.raises(errors.DisabledRepoError):
        member.model_info("demo/disabled")
    assert huggingface_hub.get_hf_file_metadata(gated, token="hf_reader").size == len(FILES["config.json"])
    assert member.model_info("demo/private").private


def test_a_repository_id_cannot_leave_the_root(server: tuple[str, Path, str]) -> None:
    for path in ("/api/models/../..", "/api/models/..%2f..%2fetc/passwd", "/demo/tiny/resolve/main/..%2f..%2fx"):
        with pytest.raises(OSError, match=r"40[14]"):
            urllib.request.urlopen(server[0] + path)


def test_the_same_content_is_the_same_commit(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    first = publish_revision(tmp_path / "hub", MODEL, source, "one")
    before = sorted(path for path in (tmp_path / "hub").rglob("*") if path.is_file())
    assert publish_revision(tmp_path / "hub", MODEL, source, "another message") == first
    assert sorted(path for path in (tmp_path / "hub").rglob("*") if path.is_file()) == before
    (source / "config.json").write_bytes(b"{}")
    second = publish_revision(tmp_path / "hub", MODEL, source, "two")
    assert second != first
    (source / "config.json").write_bytes(FILES["config.json"])
    assert publish_revision(tmp_path / "hub", MODEL, source, "back again") == first


def test_blob_and_tree_ids_are_git_s_own(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {name: data for name, data in FILES.items() if name != "model.safetensors"})
    commit = publish_revision(tmp_path / "hub", MODEL, source, "one")
    environment = {**os.environ, "GIT_DIR": str(tmp_path / "git"), "GIT_WORK_TREE": str(source)}

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "--all")
    tree = git("write-tree")
    body = f"tree {tree}\n".encode()
    assert hashlib.sha1(b"commit %d\0" % len(body) + body).hexdigest() == commit
    record = json.loads((tmp_path / "hub" / MODEL / "commits" / f"{commit}.json").read_text())
    assert git("rev-parse", f"{tree}:config.json") in {entry["oid"] for entry in record["files"]}


def test_an_empty_directory_is_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        publish_revision(tmp_path, MODEL, tmp_path, "nothing")
