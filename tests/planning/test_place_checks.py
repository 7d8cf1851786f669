"""A second model in a place that another one holds is refused by the plan: its users would get the wrong model."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from place_here import serve

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.cli import main
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import Pointer, hand_over

DEMO, SECOND = "demo/tiny-llama", "demo/other-llama"


@pytest.fixture
def second(configs: Path) -> Path:
    """The demo's config, copied for a second model."""
    path = configs / "releases" / "second.yaml"
    path.write_text((configs / "releases" / "demo.yaml").read_text().replace(f"id: {DEMO}", f"id: {SECOND}"))
    return path


@pytest.fixture
def store(second: Path) -> ArtifactStore:
    return open_store(load_release(second).deployment.store)


def promote(store: ArtifactStore, model_id: str, place: str = "cpu") -> None:
    repository = ArtifactRef(kind="model_repository", digest="a" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    pointer = Pointer(release_id="r1", repository=repository, slot="blue", recipe="none", promoted_at=since)
    serve(store, model_id, place, pointer)


def test_the_demos_config_copied_for_a_second_model_is_refused_once_the_demo_serves(second: Path, store) -> None:
    plan_release(second)
    promote(store, DEMO)
    with pytest.raises(ConfigError) as refused:
        plan_release(second)
    assert refused.value.message == f"place cpu belongs to {DEMO}: a release of {SECOND} there would take its users"
    assert "--replace" in refused.value.hint
    assert "places:" in refused.value.hint
    assert main(["plan", str(second)]) == ExitCode.BAD_INPUT
    assert main(["plan", str(second), "--replace"]) == ExitCode.GO


def test_a_store_that_is_slow_with_its_releases_hides_no_holder(second: Path, store, monkeypatch) -> None:
    promote(store, DEMO)
    monkeypatch.setattr("llm_pipeline.planning.sources.newest_of_config", lambda *_: time.sleep(30))
    with pytest.raises(ConfigError, match=f"place cpu belongs to {DEMO}"):
        plan_release(second, store_seconds=5)


def test_the_holder_releases_as_ever(configs: Path, store) -> None:
    promote(store, DEMO)
    plan_release(configs / "releases" / "demo.yaml")


def test_a_place_of_its_own_lets_the_second_model_in(second: Path, store, configs: Path, edit) -> None:
    promote(store, DEMO)
    place = """  beside:
    staging: { http: 18600, grpc: 18601, metrics: 18602, openai: 18603 }
    blue: { http: 18610, grpc: 18611, metrics: 18612, openai: 18613 }
    green: { http: 18620, grpc: 18621, metrics: 18622, openai: 18623 }
    router: { port: 18630, admin_port: 18631 }
"""
    path = configs / "deployments" / "local.yaml"
    path.write_text(path.read_text().rstrip("\n") + "\n" + place)
    edit("releases/second.yaml", "targets: [cpu]", "targets: [cpu]\nplaces: { cpu: beside }")
    plan_release(second)
    assert load_release(second).places == {"cpu": "beside"}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{ cpu: nowhere }", "cpu goes to nowhere, which has no place in deployment local"),
        ("{ h100: cpu }", "places names h100, not among targets"),
    ],
)
def test_places_that_do_not_fit_are_refused(second: Path, edit, written: str, told: str) -> None:
    edit("releases/second.yaml", "targets: [cpu]", f"targets: [cpu]\nplaces: {written}")
    with pytest.raises(ConfigError, match=told):
        load_release(second)


def test_a_hand_over_is_a_warning_of_the_plan(second: Path, store) -> None:
    promote(store, DEMO)
    assert [line for line in plan_release(second, replace=True).warnings if "handed over" in line] == [
        f"place cpu belongs to {DEMO}: a release of {SECOND} there would take its users: it is handed over to {SECOND}"
    ]
    hand_over(store, "cpu", SECOND, by="alice")
    assert [line for line in plan_release(second).warnings if "handed over" in line] == [
        f"place cpu is handed over by {DEMO}: its users get {SECOND} once this release is promoted"
    ]


def test_a_store_that_cannot_be_read_is_a_warning(second: Path, store) -> None:
    promote(store, DEMO)
    path = next(Path(store.uri.removeprefix("file://")).rglob("places/cpu.json"))
    path.write_text("{")
    assert any(line.startswith("which models hold the places and") for line in plan_release(second).warnings)
