"""Named calibration sets: pinned on the hub, verified, fetched once, and published with where they are from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.catalog import named_sets
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.hub.access import Hub, HubUnavailable, NotOnTheHub, connect
from llm_pipeline.hub.data_set_files import fetch_dataset_file
from llm_pipeline.quantization.calibration import read_sources
from llm_pipeline.release.datasets import calibration_dataset
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import read_release_record
from llm_pipeline.store import open_store

from .conftest import TOKEN_VARIABLE, LocalHub
from .test_resolve_stage import Release

ROWS = b"".join(json.dumps({"article": f"news {number}", "id": number}).encode() + b"\n" for number in range(300))
ROWS += b'{"article": " ", "id": 300}\n'


@pytest.fixture
def commit(tmp_path: Path, local_hub: LocalHub) -> str:
    """The commit of a data set on the local hub."""
    source = tmp_path / "news" / "data"
    source.mkdir(parents=True)
    (source / "news.jsonl").write_bytes(ROWS)
    return publish_revision(local_hub.root / "datasets", "demo/news", source.parent, "upload")


def test_a_file_of_a_data_set_is_verified_and_fetched_once(hub: Hub, local_hub: LocalHub, commit: str, tmp_path: Path):
    for _ in range(2):
        path, file = fetch_dataset_file(hub, "demo/news", commit, "data/news.jsonl", tmp_path / "kept")
        assert path.read_bytes() == ROWS
        assert file.size == len(ROWS)
    assert [name for name, _ in local_hub.downloads()] == ["news.jsonl"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dataset": "demo/olds"}, "no such repository"),
        ({"commit": "0" * 40}, "no such revision"),
        ({"path": "data/olds.jsonl"}, "has no file data/olds.jsonl"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    hub: Hub, commit: str, tmp_path: Path, asked: dict[str, str], message: str
):
    there = {"dataset": "demo/news", "commit": commit, "path": "data/news.jsonl"}
    with pytest.raises(NotOnTheHub, match=message) as error:
        fetch_dataset_file(hub, **(there | asked), kept=tmp_path / "kept")
    assert (there | asked)["dataset"] in error.value.where


def test_without_a_hub_there_is_one_clear_error(tmp_path: Path):
    nobody = connect("http://127.0.0.1:9", TOKEN_VARIABLE)
    with pytest.raises(HubUnavailable, match="no answer from http://127"):
        fetch_dataset_file(nobody, "demo/news", "0" * 40, "news.jsonl", tmp_path)


def test_resolve_publishes_a_mixture_with_a_named_set_and_says_where_it_is_from(
    tmp_path: Path, local_hub: LocalHub, commit: str, monkeypatch: pytest.MonkeyPatch
):
    news = named_sets.NamedSet(
        dataset="demo/news", revision=commit, file="data/news.jsonl", field="article", description="News."
    )
    monkeypatch.setattr(named_sets, "named_sets", lambda: {"news": news})
    local_hub.publish()
    release = Release(tmp_path, local_hub)
    recipe = release.root / "quantization" / "fp8.yaml"
    sources = ["calibration/demo.jsonl", "set:news"]
    release.set(recipe, calibration=yaml.safe_load(recipe.read_text())["calibration"] | {"sources": sources})
    loaded = load_release(release.path)
    result = release.resolve()
    store = open_store(loaded.deployment.store)
    ref = read_release_record(store, result.release_id).datasets[calibration_dataset("fp8")]
    (origin,) = store.manifest(ref).provenance.config["origins"]
    assert origin["dataset"] == "demo/news"
    assert (origin["commit"], origin["sha256"]) == (commit, sha256_bytes(ROWS))
    calibration = next(recipe.calibration for recipe in loaded.release.recipes if recipe.name == "fp8")
    demo, texts = read_sources(store.fetch(ref), calibration)
    assert len(demo) == 512
    assert [sample.content for sample in texts] == [f"news {number}" for number in range(300)]
