"""Places that others hold, and directories that clash, are refused by the plan before anything lies in them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from place_here import serve

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.cli import main
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release
from llm_pipeline.serving.triton_server import RunningServer
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
    plan_release(second.with_name("demo.yaml"))


def test_a_store_that_is_slow_with_its_releases_hides_no_holder(second: Path, store, monkeypatch) -> None:
    promote(store, DEMO)
    monkeypatch.setattr("llm_pipeline.planning.sources.newest_of_config", lambda *_: time.sleep(30))
    with pytest.raises(ConfigError, match=f"place cpu belongs to {DEMO}"):
        plan_release(second, store_seconds=5)


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


@pytest.fixture
def place(configs: Path) -> Callable[..., Path]:
    """Write the deployment's directories, by default side by side, and return the release config."""

    def written(**changed: str) -> Path:
        path = configs / "deployments" / "local.yaml"
        text = path.read_text()
        beside = {"store": "../../v/store", "work_root": "../../v/w", "state_root": "../../v/s"}
        for key, value in (beside | changed).items():
            text = re.sub(rf"(?m)^{key}:.*$", f"{key}: {value}", text)
        path.write_text(text)
        return configs / "releases" / "demo.yaml"

    return written


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"work_root": "../../v/store/work"}, "work_root {root}/v/store/work lies in store {root}/v/store"),
        ({"state_root": "../../v/store/cpu"}, "state_root {root}/v/store/cpu lies in store {root}/v/store"),
        ({"store": "../../v/w/store"}, "store {root}/v/w/store lies in work_root {root}/v/w"),
        ({"state_root": "../../v/w"}, "work_root and state_root are both {root}/v/w"),
        ({"work_root": "../../linked"}, "store and work_root are both {root}/v/store"),
        ({"work_root": "../.."}, "store {root}/v/store lies in work_root {root}"),
        (
            {"store": "../../../s1", "state_root": "../../../s2", "work_root": "../.."},
            "work_root {root} holds the configs",
        ),
        ({"state_root": ".."}, "state_root {root}/configs holds the configs"),
    ],
)
def test_a_directory_in_another_one_is_refused(place, configs: Path, changed: dict[str, str], told: str) -> None:
    (configs.parent / "linked").symlink_to(configs.parent / "v" / "store")
    release = place(**changed)
    with pytest.raises(ConfigError) as refused:
        plan_release(release)
    assert refused.value.message.splitlines()[0] == told.format(root=configs.parent)


def test_directories_side_by_side_are_fine_also_where_one_name_begins_like_another(place) -> None:
    plan_release(place(store="../../v/store", work_root="../../v/store-work", state_root="../../v/store-state"))


@pytest.fixture
def running(place) -> Iterator[tuple[Path, ArtifactRef]]:
    """A server in a slot of the demo's place, of a repository that its store has never held."""
    release = place()
    repository = ArtifactRef(kind="model_repository", digest="c" * 64)
    state = Path(load_release(release).deployment.state_root) / "cpu" / "blue"
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = detached.start("tritonserver blue", command, state / "process.json", log=state / "server.log")
    server = RunningServer(
        repository=Path("/elsewhere/store"),
        digest=repository.digest,
        ports=ServerPorts(http=18410, grpc=18411, metrics=18412, openai=18413),
        process=process,
        environment_digest="e",
        started_at=datetime.now(UTC),
    )
    (state / "server.json").write_text(server.model_dump_json())
    yield release, repository
    detached.stop(process, grace_seconds=2.0)


@pytest.mark.parametrize("replace", [False, True])
def test_a_place_where_another_deployment_serves_is_refused(running: tuple[Path, ArtifactRef], replace: bool) -> None:
    release, repository = running
    with pytest.raises(ConfigError, match="another deployment, or this one with another store, runs it") as refused:
        plan_release(release, replace=replace)
    assert str(repository) in refused.value.message
    assert "state_root and ports of its own" in refused.value.hint


def test_production_of_this_store_goes_on_though_its_files_are_lost(running: tuple[Path, ArtifactRef]) -> None:
    release, repository = running
    store = open_store(load_release(release).deployment.store)
    pointer = Pointer(
        release_id="r1", repository=repository, slot="blue", recipe="none", promoted_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    serve(store, DEMO, "cpu", pointer)
    plan_release(release)
