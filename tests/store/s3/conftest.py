"""A store in S3 behind a proxy that makes HTTP go wrong; files of more than 1,000 bytes come and go in parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3_faults import Faults

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import StoreModel

PART = 1000


@pytest.fixture
def faults(proxy: Faults, monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_given: 0.001)
    monkeypatch.setattr("botocore.retries.quota.RetryQuota.acquire", lambda *_given: True)  # tests share a client
    monkeypatch.setattr("llm_pipeline.store.blobs._BACKOFF_UNIT_SECONDS", 0.001)
    monkeypatch.setattr("llm_pipeline.store.s3_blobs.PART_BYTES", PART)
    proxy.heal()
    return proxy


@pytest.fixture
def config(s3_config: StoreModel, faults: Faults) -> StoreModel:
    return s3_config.model_copy(update={"endpoint": faults.endpoint})


@pytest.fixture
def store(config: StoreModel) -> S3Store:
    return S3Store(config)


@pytest.fixture
def put(s3_client: Any, s3_config: StoreModel) -> Callable[[ArtifactRef, str, bytes], object]:
    """Writes a file of an artifact behind the store's back."""
    bucket, prefix = s3_config.bucket_and_prefix
    return lambda ref, name, data: s3_client.put_object(
        Bucket=bucket, Key=f"{prefix}/artifacts/{ref.kind}/{ref.digest}/{name}", Body=data
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "model.bin").write_bytes(os.urandom(3 * PART + 500))
    (directory / "config.json").write_text("{}")
    return directory
