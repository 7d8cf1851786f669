from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_faults import Faults, faulty

from llm_pipeline.config.store import StoreModel, store_settings
from llm_pipeline.store.s3_blobs import connect as make_client

_clients: dict[tuple[Any, ...], Any] = {}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    (directory / "sub").mkdir(parents=True)
    (directory / "model.bin").write_bytes(os.urandom(300_000))
    (directory / "sub" / "config.json").write_text("{}")
    return directory


@pytest.fixture
def quick_s3(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The S3 server, with one client for all stores of a process: making one takes longer than most tests."""

    def connect(config: StoreModel) -> Any:
        key = (os.getpid(), config.endpoint, os.environ.get("AWS_PROFILE"), os.environ.get("AWS_ACCESS_KEY_ID"))
        if key not in _clients:
            _clients[key] = make_client(config)
        return _clients[key]

    monkeypatch.setattr("llm_pipeline.store.s3_blobs.connect", connect)
    return s3


@pytest.fixture(scope="session")
def s3_bucket(s3_server: Any) -> str:
    return s3_server.bucket()


@pytest.fixture(scope="module")
def proxy(s3_server: Any) -> Iterator[Faults]:
    """Passes requests on to the S3 server, with the faults that a test asks for."""
    with faulty(s3_server.endpoint) as faults:
        yield faults


@pytest.fixture
def s3_config(quick_s3: Any, s3_bucket: str, tmp_path: Path) -> StoreModel:
    """An empty store in S3."""
    uri = f"s3://{s3_bucket}/a/{uuid.uuid4().hex}"
    return store_settings(uri=uri, endpoint=quick_s3.endpoint, cache=str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def s3_client(s3_server: Any) -> Any:
    """A client that changes things behind a store's back."""
    return s3_server.client()


@pytest.fixture(params=["local", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreModel:
    """An empty store of each kind; `s3 in parts` has parts of 100,000 bytes."""
    if request.param == "local":
        return store_settings(uri=f"file://{tmp_path / 'store'}")
    if request.param == "s3 in parts":
        monkeypatch.setattr("llm_pipeline.store.s3_blobs.PART_BYTES", 100_000)
    found: StoreModel = request.getfixturevalue("s3_config")
    return found
