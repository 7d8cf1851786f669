"""How a place is, from what was found of its router and servers, and what the commands make of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deployment_here import write_deployment
from place_here import serve

from llm_pipeline.base.errors import ExitCode, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Pause, PauseReason, Phase, lease_name
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
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
from llm_pipeline.operations.switching import start_production, stop_production
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


def health(blue: ServerStatus, green: ServerStatus, problems: list[str] | None = None, **router: str) -> Health:
    routed = RouterStatus.model_validate({"kind": "envoy", "condition": "runs", **router})
    servers = {"blue": blue, "green": green}
    return judge_health(POINTERS, servers, routed, problems or [], stopped=is_stopped(servers, routed))


STOPPED = server("green", "stopped", 0)
HANGS, WELL = server("blue", "is running but gives no answer", 100), server("blue", "answers", 100)


def test_production_that_answers_is_healthy_and_with_a_disagreement_degraded() -> None:
    assert health(WELL, STOPPED) is Health.HEALTHY
    assert health(WELL, STOPPED, ["the way back was begun and is not done"]) is Health.DEGRADED


@pytest.mark.parametrize("blue", [HANGS, server("blue", "has ended", 100)])
def test_a_server_that_runs_and_answers_nothing_is_as_dead_as_one_that_ended(blue: ServerStatus) -> None:
    assert health(blue, STOPPED) is Health.DEAD
    assert health(blue, server("green", "answers", 0)) is Health.DEAD  # nobody is sent there
    assert health(blue, server("green", "answers", 0), ["x"], standby="green") is Health.DEGRADED
    assert health(blue, server("green", "answers", 0), ["x"], candidate="green") is Health.DEGRADED


@pytest.mark.parametrize("condition", ["has ended", "answers nothing", "never started", "stopped"])
def test_without_its_router_no_server_serves_anybody(condition: str) -> None:
    assert health(WELL, STOPPED, condition=condition) is Health.DEAD


def test_what_was_stopped_is_not_called_dead() -> None:
    assert health(server("blue", "stopped", 100), STOPPED, condition="stopped") is Health.STOPPED
    assert health(server("blue", "has ended", 100), STOPPED, condition="stopped") is Health.DEAD


def test_every_part_that_does_not_run_is_named() -> None:
    router = RouterStatus(kind="envoy", condition="has ended")
    said = list(not_running(POINTERS, {"blue": HANGS, "green": STOPPED}, router))
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
    return CanaryRecord(
        release_id="r2", target="cpu", repository=OTHER, stable="blue", candidate="green", began_at=0.0,
        production_since=SERVES.promoted_at, phase=phase,
    )  # fmt: skip


def found(
    record: CanaryRecord | None = None,
    traffic: RouteState | None = None,
    serves: str | None = REPOSITORY.digest,
    way_back: WayBack | None = None,
) -> list[str]:
    told = traffic or all_to("blue", owner="test", epoch=1)
    place = POINTERS.model_copy(update={"way_back": way_back})
    return list(disagreements(place, record, told, {"blue": serves, "green": None}))


def test_production_with_all_the_traffic_and_its_own_server_fits() -> None:
    assert found() == found(canary(Phase.ROLLED_BACK)) == []


@pytest.mark.parametrize("phase", [Phase.SHIFTING, Phase.BAKING, Phase.PASSED, Phase.PAUSED, Phase.PROMOTED])
def test_a_canary_has_its_share_by_right(phase: Phase) -> None:
    assert found(canary(phase), SPLIT) == []


@pytest.mark.parametrize("record", [None, canary(Phase.ROLLED_BACK)])
def test_traffic_that_nobody_has_by_right_is_told(record: CanaryRecord | None) -> None:
    (problem,) = found(record, SPLIT)
    assert "production is r1 in blue, but the router sends it 80 % of the traffic (set by r2)" in problem


def test_traffic_on_the_release_that_was_taken_back_is_told() -> None:
    (problem,) = found(canary(Phase.ROLLED_BACK), all_to("green", owner="somebody", epoch=9))
    assert "the router sends it 0 %" in problem


@pytest.mark.parametrize(("serves", "words"), [(OTHER.digest, "serves bbbb"), (None, "has no server")])
def test_a_slot_that_serves_something_else_is_told(serves: str | None, words: str) -> None:
    (problem,) = found(serves=serves)
    assert words in problem


def test_what_was_begun_and_is_not_done_is_told() -> None:
    undone = WayBack(left="r2", to="r1", by="anna", asked_at=SERVES.promoted_at, repository=OTHER)
    assert len(found(canary(Phase.ROLLING_BACK), way_back=undone)) == 2


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


def test_a_place_that_there_is_not_is_refused_with_those_that_there_are(deployment, capsys) -> None:
    for command in ("status", "start", "stop"):
        assert main([command, "h100"]) == ExitCode.BAD_INPUT
        assert "its places: cpu" in capsys.readouterr().err


def test_production_is_not_stopped_before_somebody_agreed(store, capsys) -> None:
    assert main(["stop"]) == ExitCode.BAD_INPUT
    assert "give --yes" in capsys.readouterr().err


def test_whoever_moves_traffic_now_is_not_disturbed(deployment, store) -> None:
    with Lease(store, lease_name("cpu")):
        for act in (start_production, stop_production):
            with pytest.raises(Transient, match="somebody is moving the traffic of cpu now"):
                act(store, deployment, "cpu")


def on_trial(store: ArtifactStore, **changes: object) -> CanaryRecord:
    record = CanaryRecord(
        release_id="r2", target="cpu", repository=REPOSITORY, stable="blue", candidate="green", began_at=0.0,
        phase=Phase.BAKING,
    ).model_copy(update=changes)  # fmt: skip
    CanaryJournal(store, "r2", "cpu").save(record)
    edit_place(store, "cpu", lambda state: state.model_copy(update={"on_trial": "r2"}))
    return record


def test_a_paused_canary_says_since_when_by_whom_and_until_when(deployment, store, capsys) -> None:
    (Path(deployment.state_root) / "cpu").mkdir(parents=True)
    on_trial(store)
    main(["status"])
    assert "unless somebody acts" not in capsys.readouterr().out
    asked = PauseRequest(attempt=0.0, by="alice", why="the dashboard looks odd", since=0.0, deadline_seconds=3600)
    edit_place(store, "cpu", lambda state: state.model_copy(update={"pause": asked}))
    main(["status"])
    shown = (
        "paused by alice since 1970-01-01 00:00:00 UTC (the dashboard looks odd); "
        "rolled back at 1970-01-01 01:00:00 UTC unless somebody acts"
    )
    assert shown in capsys.readouterr().out
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["places"][0]["pause"] == shown
    over = asked.model_copy(update={"resumed_by": "bob"})
    edit_place(store, "cpu", lambda state: state.model_copy(update={"pause": over}))
    main(["status"])
    assert "unless somebody acts" not in capsys.readouterr().out


def test_a_canary_that_its_controller_paused_says_why(deployment, store, capsys) -> None:
    (Path(deployment.state_root) / "cpu").mkdir(parents=True)
    own = Pause(reason=PauseReason.UNDECIDED, percent=5.0, since=0.0, deadline_seconds=3600)
    on_trial(store, phase=Phase.PAUSED, pause=own)
    main(["status"])
    assert "paused since 1970-01-01 00:00:00 UTC (undecided); rolled back at" in capsys.readouterr().out
