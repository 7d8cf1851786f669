"""What people are told by a real Apprise, and that nothing which goes wrong there stops a release or shows a secret."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest
from place_here import canary_record
from pydantic import TypeAdapter

from llm_pipeline.canary.record import CanaryEvent, EventKind, canary_record_name
from llm_pipeline.config.deployment import Notifications
from llm_pipeline.notifications.telling import Event, NotSent, Origin, check_channel, of_canary, tell, tell_canary

pytest.importorskip("apprise")

from people import people

READ = TypeAdapter(Notifications).validate_python
STORY = (EventKind.STARTED, EventKind.SHIFTED, EventKind.PASSED, EventKind.APPROVAL_ASKED, EventKind.ROLLED_BACK)
EVENT = Event(Origin("here", "tiny-1"), "warning", "It happened")


@pytest.fixture
def told(monkeypatch):
    with people() as found:
        monkeypatch.setenv("CHAT_URL", found.url)
        yield found


def deployment(store=None, **channels):
    channels = channels or {"chat": {"variable": "CHAT_URL"}}
    return SimpleNamespace(name="here", store=store and store.uri, notifications=READ(channels))


def event(kind: EventKind, number: int = 1, summary: str = "it happened") -> CanaryEvent:
    return CanaryEvent(number=number, at=time.time(), kind=kind, percent=5.0, summary=summary, by="somebody")


def happened(store, *kinds: EventKind) -> None:
    """The canary's record, with these events and no others."""
    events = tuple(event(kind, number) for number, kind in enumerate(kinds, start=1))
    record = canary_record("tiny-1", "cpu-a", events=events)
    name = canary_record_name("tiny-1", "cpu-a")
    known = store.read_document(name)
    store.write_document(name, record.model_dump(mode="json"), known.revision if known else None)


def test_each_event_of_a_canary_is_told_once_however_often_it_is_looked_at(store, told):
    for kinds in (STORY[:2], STORY[:2], STORY, STORY):
        happened(store, *kinds)
        tell_canary(deployment(store), "cpu-a", "tiny-1")
    assert told.titles == [f"Canary of tiny-1 on cpu-a: {kind.value}" for kind in STORY]
    assert [message["type"] for message in told.messages] == ["info", "info", "info", "warning", "failure"]
    assert "Candidate's share: 5 %" in told.messages[0]["message"]


def test_whoever_cannot_send_on_a_channel_leaves_its_events_to_whoever_can(store, told, monkeypatch):
    """The commands that Airflow's workers run get no channel's secret at all."""
    happened(store, *STORY[:2])
    both = deployment(store, chat={"variable": "CHAT_URL"}, pager={"variable": "PAGER_URL"})
    tell_canary(both, "cpu-a", "tiny-1")
    assert len(told.messages) == 2
    monkeypatch.delenv("CHAT_URL")
    happened(store, *STORY[:3])
    tell_canary(both, "cpu-a", "tiny-1")
    assert len(told.messages) == 2
    monkeypatch.setenv("CHAT_URL", told.url)
    monkeypatch.setenv("PAGER_URL", told.url)
    for _ in range(2):
        tell_canary(both, "cpu-a", "tiny-1")
    assert len(told.messages) == 2 + 1 + 3


def test_a_channel_is_sent_what_matters_as_much_as_it_asks(told, monkeypatch):
    monkeypatch.setenv("SECOND_URL", told.url)
    tell(deployment(pager={"variable": "CHAT_URL", "at_least": "critical"}, chat={"variable": "SECOND_URL"}), [EVENT])
    assert len(told.messages) == 1


@pytest.mark.parametrize("wrong", ["nonsense://top-secret", "http//top-secret", "json://127.0.0.1:9/top-secret"])
def test_a_broken_channel_keeps_no_other_from_telling_and_no_log_shows_its_url(told, monkeypatch, caplog, wrong):
    monkeypatch.setenv("WRONG_URL", wrong)
    with caplog.at_level(logging.DEBUG):
        tell(deployment(first={"variable": "WRONG_URL"}, second={"variable": "CHAT_URL"}), [EVENT])
    assert told.titles == ["It happened"]
    assert "sending by first failed" in caplog.text
    assert "secret" not in caplog.text


def test_a_service_that_refuses_and_a_damaged_record_reach_nobody_who_drives_a_canary(store, told, caplog):
    told.refuse = [500]
    tell(deployment(), [EVENT])
    assert "sending by chat failed" in caplog.text
    store.write_document("releases/tiny-2/canary-cpu-a.json", {"not": "a record"}, None)
    tell_canary(deployment(store), "cpu-a", "tiny-2")
    assert "telling chat of the canary at cpu-a failed" in caplog.text
    assert told.messages == []


def test_text_of_others_is_one_line_without_credentials(told):
    tell(deployment(), [Event(Origin("here", "r"), "info", "a\nb", "from https://me:pw@host/\n\x1b[31mred")])
    (message,) = told.messages
    assert message["title"] == r"a\nb"
    assert "pw" not in message["message"]
    assert "\x1b" not in message["message"]
    assert len(message["message"].splitlines()) == 3


def test_a_pause_says_what_a_person_must_do():
    for kind in (EventKind.APPROVAL_ASKED, EventKind.PAUSED):
        text = of_canary(Origin("here", "tiny-1"), event(kind), "cpu-a").text
        assert "`llm-pipeline approve-step tiny-1 cpu-a 5 [--deny]`" in text
    assert "To do" not in of_canary(Origin("here", "tiny-1"), event(EventKind.SHIFTED), "cpu-a").text


def test_doctor_checks_urls_without_a_message(told, monkeypatch):
    (channel,) = deployment().notifications.values()
    assert check_channel(channel) == "1 services of Apprise"
    monkeypatch.delenv("CHAT_URL")
    assert check_channel(channel) == "nothing is sent from here: no CHAT_URL"
    monkeypatch.setenv("CHAT_URL", f"{told.url} nonsense://x")
    with pytest.raises(NotSent, match="does not understand URL 2"):
        check_channel(channel)
    assert told.messages == []
