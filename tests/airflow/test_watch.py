"""The release watch in Airflow, without Airflow's processes: what the trigger fires, and which commit a run takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTimetableInvalid
from llm_pipeline_airflow import watch as watch_module
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.started_run import revision_of_run, run_name
from llm_pipeline_airflow.watch import STATE_KEY, HubRevisionTrigger, WatchedRevision, release_schedule, watched_asset
from place_here import pointer, serve
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model import Cron
from llm_pipeline.hub import watch as policy
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.observe import list_commit
from llm_pipeline.hub.watch import Start
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.release.record import ReleaseRecord, release_record_name
from llm_pipeline.release.watch_record import Claim, claim_commit, read_status
from llm_pipeline.store import ArtifactStore, open_store

from ..hub.conftest import LocalHub, local_hub  # noqa: F401, TID252 - a fixture of the hub's tests

WATCH = "watch: { poll_minutes: 5, quiet_minutes: 0, rebuilds_per_day: 5 }\n"


class Killed(BaseException):
    """The triggerer is gone."""


class Memory:
    """Airflow's asset state store as a trigger sees it; it outlives the trigger."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.fails = False

    async def aget(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    async def aset(self, key: str, value: Any) -> None:
        if self.fails:
            raise AirflowException("the API server does not answer")
        self.values[key] = json.dumps(value)


class Watching:
    """A watched release config, its hub, its store, and triggers that come and go."""

    def __init__(self, project: Any, hub: LocalHub, text: str = WATCH) -> None:
        self.project, self.hub, self.memory = project, hub, Memory()
        project.add("deployments/here", f"hub: {{ endpoint: '{hub.endpoint}' }}\n")
        project.add("releases/tiny", text)

    @property
    def loaded(self) -> LoadedRelease:
        return load_release(self.project.config)

    @property
    def store(self) -> ArtifactStore:
        return open_store(self.loaded.deployment.store)

    def trigger(self) -> HubRevisionTrigger:
        (watcher,) = watched_asset(self.loaded, self.loaded.config.watch).watchers
        path, arguments = watcher.trigger.serialize()
        assert path == f"{HubRevisionTrigger.__module__}.{HubRevisionTrigger.__qualname__}"
        trigger = HubRevisionTrigger(**arguments)
        trigger.asset_state_store = self.memory
        return trigger

    def events(self, looks: int = 3, *, most: int = 9) -> list[Start]:
        """What a new trigger fires before it is killed: after some looks, or at an event."""
        trigger, found = self.trigger(), []

        async def pause(_seconds: float) -> None:
            nonlocal looks
            looks -= 1
            if looks == 0:
                raise Killed

        async def follow() -> None:
            async for event in trigger.run():
                found.append(Start.model_validate(event.payload))
                if len(found) == most:
                    raise Killed

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(asyncio, "sleep", pause)
            asyncio.run(follow())
        return found

    def claim(self, start: Start, run: str = "release__tiny/run 1") -> Claim:
        claim = Claim(commit=start.commit, content=start.content, run=run, cause="watch", claimed_at=datetime.now(UTC))
        return claim_commit(self.store, "tiny", claim)

    def words(self) -> str:
        status = read_status(self.store, "tiny")
        return status.words if status else ""


@pytest.fixture(autouse=True)
def no_runs_on_their_way(monkeypatch) -> None:
    """Without Airflow's processes no run is ever queued; `test_real_watch.py` asks a real Airflow."""

    async def none(dag_id: str) -> bool:
        return False

    monkeypatch.setattr(watch_module, "_runs_on_their_way", none)


@pytest.fixture
def watching(project, local_hub) -> Watching:  # noqa: F811
    local_hub.publish()
    found = Watching(project, local_hub)
    assert found.events(1) == []  # the first look
    assert "is where the watch starts from" in found.words()
    return found


def test_a_commit_made_while_the_triggerer_was_down_is_started_once_with_its_commit(watching):
    commit = watching.hub.publish(config__json=b'{"model_type": "qwen"}')
    (start,) = watching.events(most=1)
    assert (start.commit, start.revision) == (commit, "main")
    assert "config.json" in start.reason
    watching.claim(start)
    assert watching.events() == []
    assert watching.words() == f"nothing new: {commit[:12]} was released by run release__tiny/run 1"


def test_a_triggerer_killed_before_it_remembers_has_fired_nothing_and_fires_after(watching):
    commit = watching.hub.publish(config__json=b"{}")
    watching.memory.fails = True
    assert watching.events() == []
    watching.memory.fails = False
    assert [start.commit for start in watching.events(most=1)] == [commit]


def test_an_event_that_is_lost_after_it_was_remembered_is_fired_again(watching, monkeypatch):
    monkeypatch.setattr(policy, "FIRST_PATIENCE", timedelta(0))
    commit = watching.hub.publish(config__json=b"{}")
    assert [start.commit for start in watching.events(most=1)] == [commit]  # and Airflow never hears of it
    assert [start.commit for start in watching.events(most=1)] == [commit]
    firing = json.loads(watching.memory.values[STATE_KEY])["firing"]
    named = {"commit": firing["commit"], "content": firing["content"]}
    watching.claim(Start.model_validate({**named, "revision": "main", "reason": "", "seen_at": _now()}))
    assert watching.events() == []


def _now() -> datetime:
    return datetime.now(UTC)


def test_a_lost_memory_goes_on_from_what_runs_released(watching):
    released = watching.hub.publish(config__json=b"{}")
    watching.claim(watching.events(most=1)[0])
    for lost in ({}, {STATE_KEY: '{"no": "state"}'}):
        watching.memory.values = lost
        assert watching.events(1) == []
    commit = watching.hub.publish(config__json=b'{"more": 1}')
    watching.memory.values = {}
    assert [start.commit for start in watching.events(most=1)] == [commit]
    state = json.loads(watching.memory.values[STATE_KEY])
    assert len(state["starts"]) == 2  # what was started before counts among the starts of a day
    assert state["reference"]["commit"] == released


@pytest.mark.parametrize("status", [403, 404, 429, 503])
def test_a_hub_that_answers_with_errors_is_told_once_and_loses_nothing(watching, caplog, status):
    commit = watching.hub.publish(config__json=b"{}")
    watching.hub.fail("status", "/revision/main", status=status, times=2)
    with caplog.at_level(logging.INFO):
        (start,) = watching.events(4, most=1)
    assert start.commit == commit
    told = [record for record in caplog.records if "cannot look" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]


@pytest.mark.parametrize("place", ["_decide", "_recall", "_remember", "write_status"])
def test_an_exception_that_nobody_expected_is_logged_once_and_the_watch_goes_on(watching, monkeypatch, caplog, place):
    commit = watching.hub.publish(config__json=b"{}")
    owner = HubRevisionTrigger if place.startswith("_") else watch_module
    real, failures = getattr(owner, place), 0

    def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise ZeroDivisionError("of https://user:hunter2@hub.example")
        return real(*arguments, **options)

    monkeypatch.setattr(owner, place, fail)
    assert [start.commit for start in watching.events(5, most=1)] == [commit]
    assert caplog.text.count("Traceback") == 1
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("cron", "fits"),
    [
        *((cron, True) for cron in ("0 3 * * *", "*/15 0-6,22 1,15 jan-mar mon#1", "0 0 L * 7", "5/10 * ? * SUN")),
        ("@quarterly", True),
        *((cron, False) for cron in ("", "daily", "@once", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *")),
        *((cron, False) for cron in ("* * * 13 *", "* * * * 8", "1;2 * * * *")),
    ],
)
def test_a_release_config_takes_the_schedules_that_airflow_takes(cron, fits):
    """Seen with `plan`: it let pass what the DAG refused."""
    try:
        CronTriggerTimetable(cron, timezone="UTC").validate()
        taken = True
    except AirflowTimetableInvalid:
        taken = False
    try:
        TypeAdapter(Cron).validate_python(cron)
        assert taken
    except ValidationError:
        assert not taken
    assert taken is fits


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", type(None)),
        ("schedule: '0 3 * * *'\n", CronTriggerTimetable),
        (WATCH, WatchedRevision),
        (WATCH + "schedule: '0 3 * * *'\n", AssetOrTimeSchedule),
    ],
)
def test_a_release_is_started_by_its_watch_its_schedule_either_or_nothing(project, text, kind):
    from airflow.serialization.serialized_objects import DagSerialization

    project.config.write_text(project.config.read_text() + text)
    loaded = load_release(project.config)
    assert type(release_schedule(loaded)) is kind
    if text == WATCH:
        assert hash(release_schedule(loaded)) == hash(release_schedule(loaded))  # equal ones, see its class
    dag = release_dag(project.config)
    assert dag.catchup is False
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == "release__tiny"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "schedule: 'every day'\n", "schedule: must be a cron expression of five fields"),
        ("{ id: demo/tiny }", "{ id: demo/tiny, source: 'file:///models' }", "needs a branch or a tag"),
        ("{ id: demo/tiny }", f"{{ id: demo/tiny, revision: {'a' * 40} }}", "needs a branch or a tag"),
    ],
)
def test_what_cannot_start_a_release_is_refused_with_the_config_s_name(project, old, new, words):
    text = project.config.read_text() + WATCH
    project.config.write_text(text.replace(old, new) if old else text + new)
    with pytest.raises(ConfigError, match=words) as refused:
        release_schedule(load_release(project.config))
    assert "tiny.yaml" in str(refused.value)


def context(
    run_id: str = "run 1",
    kind: str = "asset_triggered",
    revision: str | None = None,
    events: Any = (),
    unfinished: tuple[str, ...] = (),
) -> Any:
    """What a task is given, as far as the choice of the commit reads it."""

    def count(dag_id: str, run_ids: list[str], states: list[str]) -> int:
        assert (dag_id, states) == ("release__tiny", ["queued", "running"])
        return len({*run_ids}.intersection(unfinished))

    found = [SimpleNamespace(timestamp=at, extra=extra) for at, extra in events]
    return {
        "dag_run": SimpleNamespace(dag_id="release__tiny", run_id=run_id, run_type=kind),
        "run_id": run_id,
        "ti": SimpleNamespace(get_dr_count=count),
        "params": {"revision": revision},
        "triggering_asset_events": {"the asset": found} if found else {},
    }


def event(commit: str, hour: int = 1) -> tuple[datetime, dict[str, Any]]:
    at = datetime(2026, 1, 1, hour, tzinfo=UTC)
    start = Start(commit=commit, content="c", revision="main", reason="a test", seen_at=at)
    return at, {"from_trigger": True, "payload": start.model_dump(mode="json")}


A, B = "a" * 40, "b" * 40


def test_a_run_and_its_retries_release_the_commit_of_its_newest_event_which_another_run_does_not(watching):
    first = context("run 1", events=[event(A, 2), event(B, 1)])
    assert [revision_of_run(watching.loaded, first) for _ in range(2)] == [A, A]
    with pytest.raises(AirflowSkipException, match=f"{A} was released by run release__tiny/run 1"):
        revision_of_run(watching.loaded, context("run 2", events=[event(A)]))
    assert revision_of_run(watching.loaded, context("run 2", events=[event(B)])) == B


def test_a_person_s_run_always_runs_and_releases_what_they_named(watching):
    revision_of_run(watching.loaded, context("run 1", events=[event(A)]))
    assert revision_of_run(watching.loaded, context("run 2", "manual", revision=A)) == A
    assert revision_of_run(watching.loaded, context("run 3", "manual")) is None


def promote(watching: Watching, commit: str, *targets: str, **changes: Any) -> None:
    loaded = watching.loaded
    model = HubSource(connect(watching.hub.endpoint, "NO_TOKEN")).resolve("demo/tiny", commit)
    release = loaded.release.model_copy(update=changes)
    record = ReleaseRecord(
        release_id=f"tiny-{commit[:8]}", release=release, deployment=loaded.deployment, model=model, datasets={},
        created_at=_now(),
    )  # fmt: skip
    watching.store.write_document(release_record_name(record.release_id), record.model_dump(mode="json"), None)
    for target in targets:
        serve(watching.store, "demo/tiny", target, pointer(record.release_id))


def scheduled(watching: Watching, run_id: str = "run 9", unfinished: tuple[str, ...] = ()) -> str | None:
    return revision_of_run(watching.loaded, context(run_id, "scheduled", unfinished=unfinished))


def test_a_scheduled_run_releases_what_the_revision_names_unless_production_everywhere_serves_that_content(watching):
    first = watching.hub.publish(config__json=b"{}")
    assert scheduled(watching) == first
    promote(watching, first, "cpu-a")
    assert scheduled(watching) == first, "cpu-b serves something else"
    second = watching.hub.publish(config__json=b'{"newer": 1}')
    promote(watching, second, "cpu-a", "cpu-b")
    readme = watching.hub.publish(config__json=b'{"newer": 1}', README__md=b"# other")
    with pytest.raises(AirflowSkipException, match=f"nothing new: demo/tiny@main is {readme}"):
        scheduled(watching)
    third = watching.hub.publish(config__json=b'{"newer": 2}')
    assert scheduled(watching) == third


def test_a_scheduled_run_that_is_cleared_runs_again(watching):
    commit = watching.hub.publish(config__json=b"{}")
    promote(watching, commit, "cpu-a", "cpu-b")
    content = list_commit(connect(watching.hub.endpoint, "NO_TOKEN"), "demo/tiny", commit).reference().content
    start = Start(commit=commit, content=content, revision="main", reason="", seen_at=_now())
    watching.claim(start, run_name(context("run 9", "scheduled")))
    assert scheduled(watching, "run 9") == commit
    with pytest.raises(AirflowSkipException):
        scheduled(watching, "run 10")


def test_a_scheduled_run_leaves_a_commit_to_the_run_that_is_releasing_it(watching):
    commit = watching.hub.publish(config__json=b"{}")
    watching.claim(watching.events(most=1)[0])
    with pytest.raises(AirflowSkipException, match="is being released by run release__tiny/run 1"):
        scheduled(watching, unfinished=("run 1",))
    assert scheduled(watching) == commit  # that run ended, and production does not serve it
