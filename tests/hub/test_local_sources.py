"""The Hugging Face cache, as the real client fills it, and a plain directory, as sources."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Unsupported
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.cache_source import CacheSource, default_cache
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.source import Source, SourceRefused
from llm_pipeline.hub.sources import open_source

from .conftest import LocalHub, safetensors_bytes

STORE = store_settings(uri="file:///store")


@pytest.fixture
def cache(local_hub: LocalHub, tmp_path: Path) -> CacheSource:
    """A cache that the hub's client filled."""
    local_hub.publish()
    root = tmp_path / "cache"
    snapshot_download("demo/tiny", cache_dir=root, endpoint=local_hub.endpoint, token=False)
    return CacheSource(root)


@pytest.fixture
def directory(local_hub: LocalHub, tmp_path: Path) -> DirectorySource:
    """A directory with the same model."""
    local_hub.publish()
    root = tmp_path / "model"
    root.mkdir()
    for name, data in local_hub.contents.items():
        (root / name).write_bytes(data)
    return DirectorySource(root)


def snapshot_of(cache: CacheSource) -> Path:
    return next((cache.root / "models--demo--tiny/snapshots").iterdir())


def content(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def expected(local_hub: LocalHub) -> dict[str, bytes]:
    return {name: data for name, data in local_hub.contents.items() if name != "README.md"}


def test_a_cache_gives_the_same_pinned_model_as_the_hub_without_a_network(
    cache: CacheSource, source: HubSource, local_hub: LocalHub, tmp_path: Path
) -> None:
    online = source.resolve("demo/tiny", "main")
    before = len(local_hub.faults.requests)
    offline = cache.resolve("demo/tiny", "main")
    assert offline == online
    assert cache.resolve("demo/tiny", offline.commit) == offline
    download_model(cache, offline, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert not any(path.is_symlink() for path in (tmp_path / "checkpoint").rglob("*"))
    assert len(local_hub.faults.requests) == before


@pytest.mark.parametrize("revision", ["v9", "0" * 40, "../../outside", "a/../../../outside", "main/../main"])
def test_a_revision_that_the_cache_does_not_have_is_refused(cache: CacheSource, revision: str) -> None:
    (cache.root / "outside").write_text(snapshot_of(cache).name)
    with pytest.raises(SourceRefused, match="this revision") as caught:
        cache.resolve("demo/tiny", revision)
    assert snapshot_of(cache).name in caught.value.hint


def test_a_model_that_the_cache_does_not_have_says_how_to_fetch_it(cache: CacheSource) -> None:
    with pytest.raises(SourceRefused, match="this model") as caught:
        cache.resolve("demo/other", "main")
    assert "hf download demo/other" in caught.value.hint


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_blob_of_the_cache_is_found(cache: CacheSource, tmp_path: Path, name: str) -> None:
    model = cache.resolve("demo/tiny", "main")
    blob = (snapshot_of(cache) / name).resolve()
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(IntegrityError, match=name):
        download_model(cache, model, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / name).exists()


def _outside(link: Path, root: Path) -> None:
    (root.parent / "secret").write_text("{}")
    link.symlink_to(root.parent / "secret")


def _other_model(link: Path, root: Path) -> None:
    other = root / "models--demo--other/blobs" / ("a" * 40)
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    link.symlink_to(os.path.relpath(other, link.parent))


def _outside_in_two_steps(link: Path, root: Path) -> None:
    blob = root / "models--demo--tiny/blobs" / ("b" * 40)
    (root.parent / "secret").write_text("{}")
    blob.symlink_to(root.parent / "secret")
    link.symlink_to(f"../../blobs/{blob.name}")


def _outside_under_a_blob_s_name(link: Path, root: Path) -> None:
    blob = next((root / "models--demo--tiny/blobs").iterdir())
    shutil.copy(blob, root.parent / blob.name)
    link.symlink_to(root.parent / blob.name)


def _no_link(link: Path, root: Path) -> None:
    link.write_text("{}")


def _dangling(link: Path, root: Path) -> None:
    link.symlink_to(f"../../blobs/{'c' * 40}")


@pytest.mark.parametrize(
    "replace", [_outside, _outside_under_a_blob_s_name, _other_model, _outside_in_two_steps, _no_link, _dangling]
)
@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_a_snapshot_s_file_that_is_no_link_to_a_blob_of_the_model_is_refused(
    cache: CacheSource, replace: Callable[[Path, Path], None], name: str
) -> None:
    link = snapshot_of(cache) / name
    link.unlink()
    replace(link, cache.root)
    with pytest.raises(IntegrityError):
        cache.resolve("demo/tiny", "main")


def test_a_blob_that_models_share_is_followed(cache: CacheSource, local_hub: LocalHub, tmp_path: Path) -> None:
    blob = (snapshot_of(cache) / "model.safetensors").resolve()
    shared = cache.root / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    download_model(cache, cache.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)


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


def test_the_commit_of_a_directory_is_the_id_that_the_hub_s_tree_would_have(
    directory: DirectorySource, local_hub: LocalHub
) -> None:
    (directory.root / "README.md").unlink()
    published = local_hub.publish(README__md=None)
    large = {"model.safetensors": safetensors_bytes(11_000_000)}
    (directory.root / "model.safetensors").write_bytes(large["model.safetensors"])
    published = local_hub.publish(README__md=None, model__safetensors=large["model.safetensors"])
    assert directory.resolve("demo/tiny", "main").commit == published


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


def test_a_directory_has_no_revisions(directory: DirectorySource) -> None:
    with pytest.raises(SourceRefused, match="no revisions"):
        directory.resolve("demo/tiny", "v2")


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


def test_a_link_put_in_place_of_a_pinned_file_is_not_followed(directory: DirectorySource, tmp_path: Path) -> None:
    model = directory.resolve("demo/tiny", "main")
    shutil.copy(directory.root / "config.json", tmp_path / "elsewhere")
    (directory.root / "config.json").unlink()
    (directory.root / "config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceRefused, match=r"config\.json"):
        download_model(directory, model, tmp_path / "checkpoint")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "named pipe"])
def test_what_is_put_in_place_of_a_pinned_file_and_is_no_file_is_refused(
    directory: DirectorySource, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    model = directory.resolve("demo/tiny", "main")
    (directory.root / "config.json").unlink()
    make(directory.root / "config.json")
    with pytest.raises(SourceRefused, match="not a regular file"):
        download_model(directory, model, tmp_path / "checkpoint")


def test_the_client_s_own_bookkeeping_in_a_directory_is_ignored(directory: DirectorySource) -> None:
    commit = directory.resolve("demo/tiny", "main").commit
    (directory.root / ".cache/huggingface").mkdir(parents=True)
    (directory.root / ".cache/huggingface/link").symlink_to("/etc/passwd")
    assert directory.resolve("demo/tiny", "main").commit == commit


def test_pickles_and_missing_weights_are_refused_in_a_directory_too(directory: DirectorySource) -> None:
    (directory.root / "model.safetensors").rename(directory.root / "pytorch_model.bin")
    with pytest.raises(Unsupported, match="can run code"):
        directory.resolve("demo/tiny", "main")


def test_a_directory_that_is_not_there_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        DirectorySource(tmp_path / "missing").resolve("demo/tiny", "main")


@pytest.mark.parametrize(
    ("source", "opened"),
    [
        ("cache", CacheSource(Path("/hub-cache"))),
        ("file:///models/tiny%20llama", DirectorySource(Path("/models/tiny llama"))),
    ],
)
def test_a_source_is_named_in_the_release_config(source: str, opened: Source) -> None:
    assert open_source(source, HubAccess(cache="/hub-cache"), STORE) == opened


def test_without_a_directory_the_cache_is_the_client_s_own() -> None:
    assert open_source("cache", HubAccess(), STORE) == CacheSource(default_cache())


def test_a_prefix_that_cannot_be_in_s3_is_refused() -> None:
    with pytest.raises(PipelineError, match="not a place in S3"):
        open_source("s3://bucket/a b", HubAccess(), STORE)


def test_a_mirror_serves_as_the_hub(local_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_hub.publish()
    monkeypatch.setenv("HF_ENDPOINT", local_hub.endpoint)
    mirror = open_source("hub", HubAccess(token_variable="LLM_PIPELINE_TEST_TOKEN"), STORE)
    download_model(mirror, mirror.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert json.loads((tmp_path / "checkpoint/config.json").read_text())["model_type"] == "llama"
