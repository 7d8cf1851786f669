"""The settings of stores: each kind has its own, whatever the file calls it by."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from llm_pipeline.adapters.local.directory import DirectoryStore
from llm_pipeline.adapters.s3.adapter import BucketStore
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.store import Store, StoreModel

STORES: TypeAdapter[StoreModel] = TypeAdapter(Store)


def deployment_with(store: str, directory: Path) -> Path:
    path = directory / "here.yaml"
    path.write_text(f"work_root: work\nstate_root: state\nenvironments: {{}}\ntriton_home: triton\nstore: {store}\n")
    return path


@pytest.mark.parametrize(
    ("written", "kind", "uri"),
    [
        ("store", DirectoryStore, "file://{here}/store"),
        ("file:///srv/store", DirectoryStore, "file:///srv/store"),
        ("{uri: store, signing: null}", DirectoryStore, "file://{here}/store"),
        ("s3://bucket/prefix/", BucketStore, "s3://bucket/prefix"),
        ("{uri: 's3://bucket', endpoint: 'http://minio:9000'}", BucketStore, "s3://bucket"),
    ],
)
def test_the_uri_says_the_kind(tmp_path: Path, written: str, kind: type[StoreModel], uri: str) -> None:
    store = load_yaml(deployment_with(written, tmp_path), Deployment).store
    assert type(store) is kind
    assert store.uri == uri.format(here=tmp_path)
    assert STORES.validate_json(store.model_dump_json()) == store


def test_only_a_store_elsewhere_gets_a_cache(tmp_path: Path) -> None:
    cache = {
        written: load_yaml(deployment_with(written, tmp_path), Deployment).store.cache
        for written in ("store", "s3://bucket", "{uri: 's3://bucket', cache: mine}")
    }
    assert list(cache.values()) == [None, f"{tmp_path}/work/cache", f"{tmp_path}/mine"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{uri: store, endpoint: 'http://minio:9000'}", "unknown key store.endpoint: another kind has it"),
        ("{uri: 's3://bucket', endpiont: 'http://s3'}", "unknown key store.endpiont: did you mean endpoint?"),
        ("{uri: 's3://no bucket'}", "store.uri: not a place in S3: 's3://no bucket'; use s3://bucket/prefix"),
        ("{uri: 'file://relative'}", "store.uri: not a store: 'file://relative'; use file:///absolute/path"),
        ("{signing: null}", "missing key store.uri"),
        ("[s3://bucket]", "store: Input should be a valid dictionary"),
        ("{uri: 's3://bucket', signing: {public_keys: [a, 5]}}", "store.signing.public_keys.1: Input should be"),
        ("5", "store: Input should be a valid dictionary"),
        ("gs://bucket", "store: no store of kind 'gs' is installed; kinds are: file, s3"),
    ],
)
def test_a_wrong_one_is_told_with_its_line(tmp_path: Path, written: str, told: str) -> None:
    path = deployment_with(written, tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Deployment)
    assert f"{path}:5: " in str(caught.value)
    assert told in str(caught.value)
