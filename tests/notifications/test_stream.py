"""The stream of events: numbered, each fact once, whoever appends; and its readers lose nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from llm_pipeline.base.errors import ConfigError, RemoteStageTransient, StageOutOfTime, Transient
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.cli import main
from llm_pipeline.config.notifications import Notifications
from llm_pipeline.notifications import stream
from llm_pipeline.notifications.channel import Connection
from llm_pipeline.notifications.event import Event, Origin
from llm_pipeline.notifications.happened import asked, failed, judged
from llm_pipeline.notifications.outbox import tell
from llm_pipeline.notifications.stream import append, read
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.store import open_store

HERE = Origin("here", "tiny-1", "https://airflow.example/dags/x")


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/store")


def event(name: str, **fields) -> Event:
    told = {"kind": "verdict", "severity": "info", "deployment": "here", "title": name, **fields}
    return Event(id=name, at=datetime.now(UTC), **told)


def titles(store, after: int = 0) -> list[str]:
    return [one.title for one in read(store, after)]


def test_the_same_fact_is_taken_once_and_numbers_count_on(store):
    assert append(store, [event("a"), event("b"), event("a")]) == 2
    assert append(store, [event("b"), event("c")]) == 1
    assert [(one.number, one.title) for one in read(store)] == [(1, "a"), (2, "b"), (3, "c")]
    assert titles(store, after=2) == ["c"]
    assert titles(store, after=3) == []


def test_many_writers_at_once_lose_nothing_and_tell_nothing_twice(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(store, [event(f"e{number % 20}")]), range(40)))
    assert sorted(titles(store)) == sorted(f"e{number}" for number in range(20))
    assert [one.number for one in read(store)] == list(range(1, 21))


def test_a_stream_of_many_documents_is_read_on_from_any_number_and_forgets_the_oldest(store, monkeypatch):
    monkeypatch.setattr(stream, "EVENTS_A_DOCUMENT", 3)
    monkeypatch.setattr(stream, "DOCUMENTS_KEPT", 2)
    assert append(store, [event(f"e{number}") for number in range(1, 8)]) == 7
    assert append(store, [event("e6"), event("e7"), event("e8")]) == 1
    assert titles(store) == ["e4", "e5", "e6", "e7", "e8"]  # the first document is gone
    assert titles(store, after=6) == ["e7", "e8"]
    assert [one.number for one in read(store, after=5)] == [6, 7, 8]


class Kept:
    """A channel that keeps what it is sent."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def send(self, message) -> None:
        self.titles.append(message.title)


def test_a_channel_is_sent_what_matters_enough_of_its_own_deployment(store, monkeypatch):
    kept = {"all": Kept(), "some": Kept(), "few": Kept()}
    monkeypatch.setattr("llm_pipeline.notifications.outbox.channels", lambda *_: kept.items())
    channel = {"kind": "webhook", "variable": "CHAT"}
    config = TypeAdapter(Notifications).validate_python(
        {"all": channel, "some": {**channel, "at_least": "warning"}, "few": {**channel, "at_least": "critical"}}
    )
    deployment = SimpleNamespace(name="here", notifications=config)
    happened = [event(severity, severity=severity) for severity in ("info", "warning", "critical")]
    tell(store, deployment, lambda _: Connection(), events=[*happened, event("not ours", deployment="there")])
    tell(store, deployment, lambda _: Connection(), events=happened)
    assert {name: one.titles for name, one in kept.items()} == {
        "all": ["info", "warning", "critical"], "some": ["warning", "critical"], "few": ["critical"],
    }  # fmt: skip


def test_an_error_says_what_it_is_and_what_to_do(store):
    wrong = failed(HERE, "build", "h100", ConfigError("no such flag", hint="correct the target"), key="1")
    assert (wrong.kind, wrong.severity) == ("failure", "warning")
    assert wrong.title == "Build h100 of tiny-1: failed"
    assert (wrong.why, wrong.next_action) == ("no such flag", "Correct the target.")
    late = RemoteStageTransient(StageOutOfTime("stopped after 2 h", hint="raise time_limit_hours").to_document())
    assert failed(HERE, "build", "h100", late, key="1").kind == "deadline"
    again = failed(HERE, "build", "h100", late, key="1", tried_again=True)
    assert (again.kind, again.severity) == ("deadline", "warning")
    assert again.title == "Build h100 of tiny-1: ran out of time, and is tried again"
    assert failed(HERE, "build", "h100", Transient("?"), key="1", tried_again=True).kind == "retry"
    assert failed(HERE, "rollback", "h100", wrong_error := ConfigError("?"), key="1").severity == "critical"
    assert failed(HERE, "", "", wrong_error, key="1").title == "Release tiny-1: failed"
    assert "secret" not in failed(HERE, "build", "h100", ValueError("secret"), key="1").why


@pytest.mark.parametrize(("verdict", "severity"), [(Verdict.GO, "info"), (Verdict.NO_GO, "warning")])
def test_a_gates_verdict_is_told_and_that_of_a_canary_only_by_its_own_events(verdict, severity):
    def result(stage: str) -> StageResult:
        fact = Evidence(name="score", verdict=verdict, measured=0.5, samples=9)
        timings = Timings(started_at=datetime.now(UTC), total_seconds=1.0)
        decided = judge("it was measured", [fact])
        return StageResult(release_id="tiny-1", stage=stage, subject="x", key="k", judgement=decided, timings=timings)

    told = judged(HERE, result("accuracy"))
    assert (told.severity, told.title, told.link) == (severity, f"Accuracy gate x of tiny-1: {verdict}", HERE.link)
    assert judged(HERE, result("canary")) is None


def test_the_command_prints_json_lines_that_a_reader_goes_on_from(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "llm_pipeline.cli.options.deployment_of", lambda _: SimpleNamespace(store=store_config(tmp_path))
    )
    question = asked(HERE, "Promote it?", key="1", until=None, action="`llm-pipeline approve tiny-1`")
    append(store, [question, event("other", release_id="big-1"), event("later", release_id="tiny-1")])
    assert main(["events", "--json", "--release", "tiny"]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["title"], last["number"]) == ("Waiting for a person: Promote it?", 3)
    assert main(["events", "--json", "--after", "3"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["events"]) == 0
    assert "To do: Answer: `llm-pipeline approve tiny-1`" in capsys.readouterr().out


def store_config(tmp_path):
    from llm_pipeline.config.store import store_settings

    return store_settings(uri=f"file://{tmp_path}/store")


def test_a_damaged_document_of_the_stream_loses_its_own_events_and_no_others(store, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(stream, "EVENTS_A_DOCUMENT", 2)
    append(store, [event("a"), event("b"), event("c")])
    for index in (0, 1):  # one that was complete, and the one that is written to
        (tmp_path / f"store/events/{index:08d}.json").write_bytes(b"\x00{")
    assert append(store, [event("d")]) == 1
    assert [(one.number, one.title) for one in read(store)] == [(5, "d")]
    assert "events/00000001.json" in caplog.text


@pytest.mark.parametrize("damaged", ["told/here.first.json", "events/00000000.json"])
def test_a_damaged_document_or_a_broken_channel_keeps_no_channel_from_being_told(
    store, monkeypatch, tmp_path, damaged: str
):
    class Broken:
        def send(self, _message) -> None:
            raise RuntimeError("no channel may raise this")

    first, last = Kept(), Kept()
    everyone = {"first": first, "broken": Broken(), "last": last}
    monkeypatch.setattr("llm_pipeline.notifications.outbox.channels", lambda *_: everyone.items())
    channel = {"kind": "webhook", "variable": "CHAT"}
    config = TypeAdapter(Notifications).validate_python(dict.fromkeys(everyone, channel))
    deployment = SimpleNamespace(name="here", notifications=config)
    tell(store, deployment, lambda _: Connection(), events=[event("before")])
    (tmp_path / "store" / damaged).write_bytes(b"{")
    tell(store, deployment, lambda _: Connection(), events=[event("rolled back", severity="critical")])
    assert first.titles[-1] == last.titles[-1] == "rolled back"
