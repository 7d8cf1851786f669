"""A plain directory, and a mirror of the hub, as sources."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.source import SourceRefused
from llm_pipeline.hub.sources import open_source

from .conftest import LocalHub, content, expected

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
