"""A plain directory, and a mirror of the hub, as sources."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.s3_source import S3Source
from llm_pipeline.hub.source import SourceRefused
from llm_pipeline.hub.sources import open_source

from .conftest import CONFIG, LocalHub, content, expected, safetensors_bytes

STORE = store_settings(uri="file:///store")


@pytest.fixture
def directory(local_hub: LocalHub, tmp_path: Path) -> DirectorySource:
    """A directory with the same model."""
    local_hub.publish()
    root = tmp_path / "model"
    root.mkdir()
    for name, data in local_hub.contents.items():
        (root / name).write_bytes(data)
    return DirectorySource(root)


def test_a_directory_is_pinned_by_its_content(directory: DirectorySource, local_hub: LocalHub, tmp_path: Path) -> None:
    model = directory.resolve("demo/tiny", "main")
    assert model.license == "apache-2.0"
    assert directory.resolve("demo/tiny", model.commit) == model
    (directory.root / "README.md").write_text("not fetched, so it does not count")
    assert directory.resolve("demo/tiny", "main").commit == model.commit
    download_model(directory, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    (directory.root / "config.json").write_bytes(local_hub.contents["config.json"] + b"\n")
    assert directory.resolve("demo/tiny", "main").commit != model.commit
    with pytest.raises(SourceRefused, match="no revisions"):
        directory.resolve("demo/tiny", "v2")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_directory_that_changes_after_it_was_pinned_is_refused(
    directory: DirectorySource, tmp_path: Path, name: str
) -> None:
    model = directory.resolve("demo/tiny", "main")
    data = bytearray((directory.root / name).read_bytes())
    data[-1] ^= 1
    (directory.root / name).write_bytes(data)
    with pytest.raises(IntegrityError, match=name):
        download_model(directory, model, tmp_path / "checkpoint")


@pytest.mark.parametrize("kind", ["file", "directory", "fifo"])
def test_links_and_special_files_in_a_directory_are_refused(
    directory: DirectorySource, tmp_path: Path, kind: str
) -> None:
    path = directory.root / "extra.json"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("config.json" if kind == "file" else tmp_path)
    with pytest.raises(IntegrityError, match=r"extra\.json"):
        directory.resolve("demo/tiny", "main")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("elsewhere"), "cannot be opened"),
    ],
    ids=["directory", "named pipe", "link"],
)
def test_what_is_put_in_place_of_a_pinned_file_and_is_no_file_is_refused(
    directory: DirectorySource, tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    model = directory.resolve("demo/tiny", "main")
    (directory.root / "config.json").rename(directory.root / "elsewhere")
    make(directory.root / "config.json")
    with pytest.raises(SourceRefused, match=said):
        download_model(directory, model, tmp_path / "checkpoint")


def test_a_directory_that_is_not_there_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        DirectorySource(tmp_path / "missing").resolve("demo/tiny", "main")


def test_a_mirror_serves_as_the_hub(local_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_hub.publish()
    monkeypatch.setenv("HF_ENDPOINT", local_hub.endpoint)
    mirror = open_source("hub", HubAccess(token_variable="LLM_PIPELINE_TEST_TOKEN"), STORE)
    download_model(mirror, mirror.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert json.loads((tmp_path / "checkpoint/config.json").read_text())["model_type"] == "llama"


# --- an S3 prefix, against a real S3 API server


WEIGHTS = safetensors_bytes()
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": CONFIG,
    "tokenizer.json": b'{"version": "1.0"}',
    "README.md": b"---\nlicense: mit\n---\n",
    "pytorch_model.bin": b"\x80\x04pickle",
}
FETCHED = {name: data for name, data in FILES.items() if name not in ("README.md", "pytorch_model.bin")}


class Prefix:
    """A model under a prefix of a new bucket."""

    def __init__(self, s3: Any) -> None:
        self.client, self.bucket = s3.client(), s3.bucket()
        self.source = S3Source(store_settings(uri=f"s3://{self.bucket}/models/tiny", endpoint=s3.endpoint))
        self.put("config.json", b"not below the prefix", prefix="models/tiny-2")
        for name, data in FILES.items():
            self.put(name, data)

    def put(self, name: str, data: bytes, *, prefix: str = "models/tiny", **options: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"{prefix}/{name}", Body=data, **options)

    def resolve(self) -> PinnedModel:
        return self.source.resolve("demo/tiny", "main")


@pytest.fixture
def prefix(s3: Any) -> Prefix:
    return Prefix(s3)


def weights_of(model: PinnedModel) -> HubFile:
    return next(file for file in model.files if file.path == "model.safetensors")


def test_a_prefix_is_pinned_and_its_model_downloaded(prefix: Prefix, tmp_path: Path) -> None:
    model = prefix.resolve()
    assert (model.license, {file.path for file in model.files}) == ("mit", set(FETCHED))
    assert prefix.source.resolve("demo/tiny", model.commit) == model
    download_model(prefix.source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == FETCHED


def test_the_checksum_that_s3_keeps_of_the_whole_object_is_what_must_come(prefix: Prefix, tmp_path: Path) -> None:
    assert weights_of(prefix.resolve()).sha256 is None
    prefix.put("model.safetensors", WEIGHTS, ChecksumAlgorithm="SHA256")
    weights = weights_of(prefix.resolve())
    assert weights.sha256 == hashlib.sha256(WEIGHTS).hexdigest()


def test_a_multipart_upload_s_checksum_of_checksums_is_not_taken_for_the_content_s(prefix: Prefix) -> None:
    data, place = safetensors_bytes(6_000_000), {"Bucket": prefix.bucket, "Key": "models/tiny/model.safetensors"}
    upload = prefix.client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")["UploadId"]
    parts = []
    for number, part in ((1, data[: 5 * 2**20]), (2, data[5 * 2**20 :])):
        answer = prefix.client.upload_part(
            **place, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm="SHA256"
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": answer["ChecksumSHA256"]})
    prefix.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
    assert weights_of(prefix.resolve()).sha256 is None


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_an_object_that_changed_after_it_was_pinned_is_refused(prefix: Prefix, tmp_path: Path, name: str) -> None:
    model = prefix.resolve()
    prefix.put(name, FILES[name][:-1] + b"!")
    with pytest.raises(IntegrityError, match="changed") as caught:
        download_model(prefix.source, model, tmp_path / "checkpoint")
    assert name in caught.value.where
    assert prefix.resolve().commit != model.commit


def test_an_object_that_was_deleted_after_it_was_pinned_is_refused(prefix: Prefix, tmp_path: Path) -> None:
    model = prefix.resolve()
    prefix.client.delete_object(Bucket=prefix.bucket, Key="models/tiny/model.safetensors")
    with pytest.raises((SourceRefused, IntegrityError), match="resolve the release again"):
        download_model(prefix.source, model, tmp_path / "checkpoint")


def test_no_credentials_are_refused_with_what_to_set(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(SourceRefused, match="no credentials") as caught:
        prefix.resolve()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
