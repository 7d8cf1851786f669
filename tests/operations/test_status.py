"""How a place is, from what was found of its router and servers, and what the commands make of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deployment_here import write_deployment
from place_here import canary_record, serve

from llm_pipeline.base.errors import ExitCode, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Pause, PauseReason, Phase, lease_name
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations.served_place import place_as_it_is
from llm_pipeline.operations.status import (
    DeploymentStatus,
    Health,
    PlaceStatus,
    RouterStatus,
    ServerStatus,
    deployment_status,
    disagreements,
    is_stopped,
    judge_health,
    not_running,
)
from llm_pipeline.operations.switching import start_production, stop
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PauseRequest, PlaceState, Pointer, WayBack, edit_place

REPOSITORY = ArtifactRef(kind="model_repository", digest="a" * 64)
SERVES = Pointer(release_id="r1", repository=REPOSITORY, slot="blue", recipe="none", promoted_at=datetime.now(UTC))
POINTERS = PlaceState(model_id="demo/tiny", production=SERVES)


def server(slot: str, condition: str, percent: float | None = None) -> ServerStatus:
    digest = REPOSITORY.digest if condition in ("answers", "is running but gives no answer") else ""
    return ServerStatus.model_validate(
        {"slot": slot, "condition": condition, "address": "", "digest": digest, "traffic_percent": percent}
    )


WELL, HANGS = server("blue", "answers", 100), server("blue", "is running but gives no answer", 100)
ENDED, STOPPED = server("blue", "has ended", 100), server("blue", "stopped", 100)
IDLE, OTHER_WELL = server("green", "stopped", 0), server("green", "answers", 0)


@pytest.mark.parametrize(
    ("blue", "green", "problems", "router", "health"),
    [
        (WELL, IDLE, (), {}, Health.HEALTHY),
        (WELL, IDLE, ("the way back was begun and is not done",), {}, Health.DEGRADED),
        *((WELL, IDLE, (), {"condition": one}, Health.DEAD) for one in ("has ended", "answers nothing", "stopped")),
        (WELL, IDLE, (), {"condition": "never started"}, Health.DEAD),
        (HANGS, IDLE, (), {}, Health.DEAD),
        (ENDED, IDLE, (), {}, Health.DEAD),
        (HANGS, OTHER_WELL, (), {}, Health.DEAD),  # nobody is sent there
        (HANGS, OTHER_WELL, ("x",), {"standby": "green"}, Health.DEGRADED),
        (ENDED, OTHER_WELL, ("x",), {"candidate": "green"}, Health.DEGRADED),
        (STOPPED, IDLE, (), {"condition": "stopped"}, Health.STOPPED),
        (ENDED, IDLE, (), {"condition": "stopped"}, Health.DEAD),
    ],
)
def test_a_place_is_as_well_as_its_users_are_served(blue, green, problems, router, health) -> None:
    routed = RouterStatus.model_validate({"kind": "envoy", "condition": "runs", **router})
    servers = {"blue": blue, "green": green}
    assert judge_health(POINTERS, servers, routed, problems, stopped=is_stopped(servers, routed)) is health


def test_every_part_that_does_not_run_is_named() -> None:
    router = RouterStatus(kind="envoy", condition="has ended")
    said = list(not_running(POINTERS, {"blue": HANGS, "green": IDLE}, router))
    assert said[0] == "the envoy router has ended: users get no answer"
    assert said[1] == "the server in blue (unknown) is running but gives no answer"
    assert len(said) == 2


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([Health.HEALTHY, Health.EMPTY], ExitCode.GO),
        ([Health.HEALTHY, Health.DEGRADED], ExitCode.NO_GO),
        ([Health.DEGRADED, Health.DEAD], ExitCode.INFRASTRUCTURE),
        ([Health.HEALTHY, Health.STOPPED], ExitCode.INFRASTRUCTURE),
        ([Health.HEALTHY, Health.ELSEWHERE], ExitCode.INFRASTRUCTURE),
        ([Health.EMPTY], ExitCode.INFRASTRUCTURE),
        ([], ExitCode.INFRASTRUCTURE),
    ],
)
def test_the_exit_code_is_that_of_the_worst_place(found: list[Health], code: ExitCode) -> None:
    places = tuple(PlaceStatus(place=str(number), health=one) for number, one in enumerate(found))
    assert DeploymentStatus(deployment="here", store="x", places=places).exit_code is code


OTHER = ArtifactRef(kind="model_repository", digest="b" * 64)
SPLIT = RouteState(weights={"blue": 8_000, "green": 2_000}, candidate="green", owner="r2", epoch=3)


def canary(phase: Phase) -> CanaryRecord:
    return canary_record(repository=OTHER, production_since=SERVES.promoted_at, phase=phase)


MOVED = all_to("green", owner="somebody", epoch=9)
UNDONE = WayBack(left="r2", to="r1", by="anna", asked_at=SERVES.promoted_at, repository=OTHER)
BY_RIGHT = (Phase.SHIFTING, Phase.BAKING, Phase.PASSED, Phase.PAUSED, Phase.PROMOTED)


@pytest.mark.parametrize(
    ("record", "traffic", "serves", "way_back", "told"),
    [
        (None, None, REPOSITORY.digest, None, []),
        (canary(Phase.ROLLED_BACK), None, REPOSITORY.digest, None, []),
        *((canary(phase), SPLIT, REPOSITORY.digest, None, []) for phase in BY_RIGHT),
        (None, SPLIT, REPOSITORY.digest, None, ["but the router sends it 80 % of the traffic (set by r2)"]),
        (canary(Phase.ROLLED_BACK), SPLIT, REPOSITORY.digest, None, ["but the router sends it 80 % of the traffic"]),
        (canary(Phase.ROLLED_BACK), MOVED, REPOSITORY.digest, None, ["but the router sends it 0 %"]),
        (None, None, OTHER.digest, None, ["that slot serves bbbb"]),
        (None, None, None, None, ["that slot has no server"]),
        (canary(Phase.ROLLING_BACK), None, REPOSITORY.digest, UNDONE, ["from r2 to r1", "the canary of r2"]),
    ],
)
def test_what_disagrees_is_told(record, traffic, serves, way_back, told) -> None:
    place = POINTERS.model_copy(update={"way_back": way_back})
    routed = traffic or all_to("blue", owner="test", epoch=1)
    found = list(disagreements(place, record, routed, {"blue": serves, "green": None}))
    assert len(found) == len(told)
    assert all(part in problem for part, problem in zip(told, found, strict=True))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(write_deployment(tmp_path, 18561)))
    return load_yaml(tmp_path / "here.yaml", Deployment)


@pytest.fixture
def store(deployment: Deployment) -> ArtifactStore:
    store = open_store(deployment.store)
    serve(store, "demo/tiny", "cpu", SERVES)
    return store


def test_servers_of_another_host_are_not_called_dead(deployment: Deployment, store: ArtifactStore) -> None:
    (place,) = deployment_status(store, deployment).places
    assert (place.health, place.production, place.model_id) == (Health.ELSEWHERE, SERVES, "demo/tiny")


def test_all_servers_dead_is_said_by_status_guard_and_doctor(deployment, store, capsys) -> None:
    (Path(deployment.state_root) / "cpu").mkdir(parents=True)
    for command in (["status"], ["guard"], ["doctor"]):
        main(command)
        said = capsys.readouterr()
        for word in ("deployment", "here", "dead"):
            assert word in said.out, (command, said.err)
    assert main(["guard"]) == ExitCode.INFRASTRUCTURE


def test_nothing_released_yet_is_said(deployment, capsys) -> None:
    assert main(["status"]) == ExitCode.INFRASTRUCTURE
    assert "cpu: empty (nothing is in production)" in capsys.readouterr().out
    assert main(["start"]) == ExitCode.BAD_INPUT
    assert "nothing is in production at cpu" in capsys.readouterr().err
    assert main(["stop", "--yes"]) == ExitCode.GO
    assert "nothing was stopped" in capsys.readouterr().out


def test_a_place_that_there_is_not_and_a_stop_that_nobody_agreed_to_are_refused(store, capsys) -> None:
    assert main(["stop"]) == ExitCode.BAD_INPUT
    assert "give --yes" in capsys.readouterr().err
    for command in ("status", "start", "stop"):
        assert main([command, "h100"]) == ExitCode.BAD_INPUT
        assert "its places: cpu" in capsys.readouterr().err


def test_whoever_moves_traffic_now_is_not_disturbed(deployment, store) -> None:
    with Lease(store, lease_name("cpu")):
        here = place_as_it_is(store, deployment, "", "cpu")
        for act in (lambda: start_production(store, deployment, "cpu"), lambda: stop(here)):
            with pytest.raises(Transient, match="somebody is moving the traffic of cpu now"):
                act()


def test_a_paused_canary_says_why_since_when_by_whom_and_until_when(deployment, store, capsys) -> None:
    (Path(deployment.state_root) / "cpu").mkdir(parents=True)
    journal = CanaryJournal(store, "r2", "cpu")

    def said(*options: str, **changes: object) -> str:
        journal.save(canary(Phase.BAKING).model_copy(update=changes))
        main(["status", *options])
        return capsys.readouterr().out

    edit_place(store, "cpu", lambda state: state.model_copy(update={"on_trial": "r2"}))
    assert "unless somebody acts" not in said()
    own = Pause(reason=PauseReason.UNDECIDED, percent=5.0, since=0.0, deadline_seconds=3600)
    assert "paused since 1970-01-01 00:00:00 UTC (undecided); rolled back at" in said(phase=Phase.PAUSED, pause=own)
    asked = PauseRequest(attempt=0.0, by="alice", why="the dashboard looks odd", since=0.0, deadline_seconds=3600)
    edit_place(store, "cpu", lambda state: state.model_copy(update={"pause": asked}))
    shown = (
        "paused by alice since 1970-01-01 00:00:00 UTC (the dashboard looks odd); "
        "rolled back at 1970-01-01 01:00:00 UTC unless somebody acts"
    )
    assert shown in said()
    assert json.loads(said("--json"))["places"][0]["pause"] == shown
    over = asked.model_copy(update={"resumed_by": "bob"})
    edit_place(store, "cpu", lambda state: state.model_copy(update={"pause": over}))
    assert "unless somebody acts" not in said()
