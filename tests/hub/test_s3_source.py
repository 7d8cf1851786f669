"""An S3 prefix as a source, against a real S3 API server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.s3_source import S3Source
from llm_pipeline.hub.source import SourceRefused

from .conftest import CONFIG, content, safetensors_bytes

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
    assert (weights.sha256, weights.entity_tag) == (hashlib.sha256(WEIGHTS).hexdigest(), None)


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


def test_in_a_bucket_with_versions_the_pinned_one_is_read_after_a_change(prefix: Prefix, tmp_path: Path) -> None:
    prefix.client.put_bucket_versioning(Bucket=prefix.bucket, VersioningConfiguration={"Status": "Enabled"})
    for name, data in FETCHED.items():
        prefix.put(name, data)
    model = prefix.resolve()
    prefix.put("model.safetensors", safetensors_bytes(seed=2))
    download_model(prefix.source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == FETCHED


def test_no_credentials_are_refused_with_what_to_set(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(SourceRefused, match="no credentials") as caught:
        prefix.resolve()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
