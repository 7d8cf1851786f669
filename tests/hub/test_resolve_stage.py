"""The first stage, from a release config: what it refuses before anything is spent, and what it reports."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import JsonValue

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.catalog import named_sets
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.hub.access import Hub, NotOnTheHub
from llm_pipeline.hub.sources import fetch_dataset_file
from llm_pipeline.planning import host
from llm_pipeline.quantization.calibration import read_sources
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult, calibration_dataset
from llm_pipeline.release.execute import execute
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress, resolve_request
from llm_pipeline.store import open_store

from .conftest import TOKEN_VARIABLE, LocalHub

CONFIGS = Path(__file__).parents[2] / "configs"
CARD = b"---\nlicense: %s\n---\n"


class Release:
    """A release config of the small model on the local hub."""

    def __init__(self, root: Path, hub: LocalHub) -> None:
        self.root = Path(shutil.copytree(CONFIGS, root / "configs"))
        self.path = self.root / "releases" / "demo.yaml"
        self.set(self.path, model={"id": "demo/tiny"})
        self.set(
            self.root / "deployments" / "local.yaml",
            hub={"endpoint": hub.endpoint, "token_variable": TOKEN_VARIABLE},
            environments={"control": sys.executable, "model": sys.executable},
        )

    def set(self, path: Path, **fields: object) -> None:
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))

    def model(self, **fields: object) -> None:
        self.set(self.path, model={"id": "demo/tiny", **fields})

    def resolve(self, **overrides: object) -> StageResult:
        loaded = load_release(self.path, Overrides.of(overrides))
        outcome = execute(resolve_request(loaded, loaded.overrides.revision, by="ann"))
        assert isinstance(outcome, StageResult), outcome
        return outcome

    def refusal(self, **config: JsonValue) -> StageFailure:
        request = resolve_request(load_release(self.path))
        outcome = execute(request.model_copy(update={"config": request.config | config}))
        assert isinstance(outcome, StageFailure), outcome
        return outcome

    def request(self, result: StageResult, stage: str) -> StageRequest:
        return ReleaseProgress.open(load_release(self.path).deployment, result.release_id).request(stage)

    def download(self, result: StageResult) -> StageResult:
        outcome = execute(self.request(result, "download"))
        assert isinstance(outcome, StageResult), outcome
        return outcome


def only_looked_at(hub: LocalHub) -> bool:
    """Whether nothing but configuration, tokenizer and the headers of the weights was read."""
    return {name for name, wanted in hub.downloads() if wanted != "bytes=0-65535"} <= {"config.json", "tokenizer.json"}


@pytest.fixture
def release(tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> Release:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    local_hub.publish()
    return Release(tmp_path, local_hub)


def test_the_result_names_commit_source_licence_and_size(release: Release, local_hub: LocalHub) -> None:
    metrics = release.resolve().metrics
    assert metrics["license"] == "apache-2.0"
    assert (metrics["gated"], metrics["license_change"], metrics["source"]) == ("", "", "hub")
    assert metrics["bytes"] == sum(len(data) for name, data in local_hub.contents.items() if name != "README.md")


def test_what_a_run_has_otherwise_is_in_its_record_with_who_asked_and_makes_another_release(release: Release) -> None:
    plain, other = release.resolve(), release.resolve(recipes=["int4_awq"], strategy="every")
    assert other.release_id != plain.release_id
    store = open_store(load_release(release.path).deployment.store)
    record, before = (read_release_record(store, result.release_id) for result in (other, plain))
    assert [recipe.name for recipe in record.release.recipes] == ["int4_awq"]
    assert record.ladders == {"cpu": ("int4_awq",)}
    assert record.overrides_in_words == "recipes int4_awq; ladder strategy every, by ann"
    assert (before.overrides_in_words, len(before.release.recipes) > 1) == ("", True)


def test_a_licence_that_is_not_allowed_stops_the_release_before_its_weights_are_fetched(
    release: Release, local_hub: LocalHub
) -> None:
    release.model(licenses=["mit", "llama3.1"])
    error = release.refusal().error
    assert (error.type, error.family) == ("Unsupported", "terminal")
    assert "apache-2.0" in error.message
    assert only_looked_at(local_hub)


def test_a_changed_licence_is_told_until_a_release_with_it_has_gone_on(release: Release, local_hub: LocalHub) -> None:
    first = release.resolve()
    release.download(first)
    local_hub.publish(README__md=CARD % b"llama3.1")
    for _ in range(2):
        changed = release.resolve()
        assert changed.metrics["license_change"] == "apache-2.0 -> llama3.1"
    release.download(changed)
    assert release.resolve().metrics["license_change"] == ""
    assert release.resolve(revision=str(first.metrics["commit"])).metrics["license_change"] == "llama3.1 -> apache-2.0"


def test_a_disk_that_cannot_hold_work_and_store_is_named_with_the_numbers(
    release: Release, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda _: 38_000_000)
    error = release.refusal().error
    assert error.message == "store and work_root: 39 MB needed, 38 MB free"
    assert only_looked_at(local_hub)
    monkeypatch.setattr(host, "free_bytes", lambda _: 40_000_000)
    release.resolve()


def test_a_directory_named_in_the_release_config_is_the_model(
    release: Release, local_hub: LocalHub, tmp_path: Path
) -> None:
    directory = tmp_path / "weights"
    directory.mkdir()
    for name, data in local_hub.contents.items():
        (directory / name).write_bytes(data)
    release.model(source=directory.as_uri())
    resolved = release.resolve()
    assert release.download(resolved).metrics["files"] == 3
    assert resolved.metrics["license"] == "apache-2.0"
    assert local_hub.faults.requests == []


@pytest.mark.parametrize(
    ("change", "reused"),
    [
        ({"hub": {"endpoint": "http://127.0.0.1:9"}}, True),
        ({"source": "file:///models"}, True),
        ({"commit": "0" * 40}, False),
    ],
    ids=["hub", "source", "commit"],
)
def test_the_stage_key_holds_what_decides_the_content_and_no_place(
    release: Release, change: dict[str, object], reused: bool
) -> None:
    resolved = release.resolve()
    first = release.download(resolved)
    request = release.request(resolved, "download")
    changed = request.model_copy(update={"config": request.config | change})
    outcome = execute(changed)
    same = isinstance(outcome, StageResult) and outcome.reused and outcome.key == first.key
    assert same is reused


def test_data_of_the_hub_are_pinned_by_their_stage_once_a_release(release: Release) -> None:
    own = release.request(release.resolve(), "eval_data").config
    assert (own["tasks"], own["release"]) == (["demo_generate", "demo_choice"], "")
    revisions = {"openai/gsm8k": "main"}
    release.set(
        release.path,
        evaluation={"tasks": ["gsm8k"], "served_tasks": ["gsm8k"], "data_revisions": revisions},
        baseline={"dtype": "float16"},
    )
    resolved = release.resolve()
    config = release.request(resolved, "eval_data").config
    assert (config["revisions"], config["release"]) == (revisions, resolved.release_id)


# --- named calibration sets: pinned on the hub, verified, fetched once, published with where they are from


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


def test_a_file_that_the_data_set_does_not_have_is_named(hub: Hub, commit: str, tmp_path: Path):
    with pytest.raises(NotOnTheHub, match=r"has no file data/olds\.jsonl") as error:
        fetch_dataset_file(hub, "demo/news", commit, "data/olds.jsonl", tmp_path / "kept")
    assert "demo/news" in error.value.where


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
