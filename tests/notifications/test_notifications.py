from __future__ import annotations

import logging
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.base.logging import ReadableFormatter
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.events import CanaryEvent, EventKind
from llm_pipeline.canary.record import CanaryRecord, canary_record_name
from llm_pipeline.config.notifications import FOR_PEOPLE, Notifications
from llm_pipeline.notifications import outbox
from llm_pipeline.notifications.channel import Connection, channels, no_connections
from llm_pipeline.notifications.event import Origin
from llm_pipeline.notifications.happened import of_canary
from llm_pipeline.notifications.message import message_of
from llm_pipeline.notifications.outbox import tell
from llm_pipeline.store import open_store

sys.path.insert(0, str(Path(__file__).parent))

from message_servers import mail_server, webhook_server

READ = TypeAdapter(Notifications).validate_python
EMAIL = {"kind": "email", "to": ["ops@example.org"]}
CONFIG = READ({"webhook": {"kind": "webhook", "variable": "CHAT_WEBHOOK"}, "email": EMAIL})
BY_CONNECTION = READ({"webhook": {"kind": "webhook", "connection": "chat"}, "email": EMAIL})
STORY = (EventKind.STARTED, EventKind.SHIFTED, EventKind.PASSED, EventKind.APPROVAL_ASKED, EventKind.ROLLED_BACK)


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def chat():
    with webhook_server() as received:
        yield received


def happened(store, *kinds: EventKind, summary: str = "it happened", ago: float = 0.0) -> None:
    """The canary's record, with these events and no others."""
    events = tuple(event(kind, number, summary=summary, ago=ago) for number, kind in enumerate(kinds, start=1))
    record = CanaryRecord(
        release_id="tiny-1", target="cpu-a", repository=ArtifactRef(kind="model_repository", digest="0" * 64),
        stable="blue", candidate="green", began_at=0.0, events=events,
    )  # fmt: skip
    name = canary_record_name("tiny-1", "cpu-a")
    known = store.read_document(name)
    store.write_document(name, record.model_dump(mode="json"), known.revision if known else None)


def event(kind: EventKind, number: int = 1, *, summary: str = "it happened", ago: float = 0.0) -> CanaryEvent:
    return CanaryEvent(number=number, at=time.time() - ago, kind=kind, percent=5.0, summary=summary, by="somebody")


def told(store, chat, config: Notifications = CONFIG) -> int:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHAT_WEBHOOK", chat.url)
        return told_by(store, config, no_connections)


def told_by(store, config: Notifications, connections, release_id: str = "tiny-1") -> int:
    deployment = SimpleNamespace(name="here", notifications=config)
    return tell(store, deployment, connections, canaries={"cpu-a": release_id})


def message_about(kind: EventKind):
    return message_of(of_canary(Origin("here", "tiny-1"), event(kind), "cpu-a"))


def test_each_event_is_told_once_however_often_and_by_whom_it_is_asked(store, chat):
    happened(store, *STORY[:2])
    assert told(store, chat) == 2
    assert told(store, chat) == 0
    happened(store, *STORY)
    assert told(store, open_chat := chat) == 3
    assert told(store, open_chat) == 0
    assert [text.rpartition(": ")[2] for text in chat.texts] == [kind.value for kind in STORY]


def test_a_channel_that_cannot_be_opened_keeps_no_other_from_telling(store, chat, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    two = {"first": {"kind": "opentelemetry"}, "second": {"kind": "webhook", "variable": "CHAT_WEBHOOK"}}
    happened(store, *STORY[:2])
    assert told(store, chat, READ(two)) == 2
    assert "a channel cannot be opened" in caplog.text


def test_what_is_a_day_old_is_told_to_nobody(store, chat):
    happened(store, *STORY, ago=outbox.STALE_SECONDS + 60)
    assert told(store, chat) == 0
    assert chat.paths == []


def test_an_event_that_is_not_taken_is_tried_again_later_and_in_order(store, chat, monkeypatch):
    happened(store, *STORY[:2])
    chat.answers = [503]
    assert told(store, chat) == 0
    assert told(store, chat) == 0
    assert len(chat.paths) == 1  # not at once
    monkeypatch.setattr(outbox.time, "time", lambda now=time.time: now() + outbox.PAUSE_SECONDS)
    assert told(store, chat) == 2
    assert [text.rpartition(": ")[2] for text in chat.texts] == ["started", "shifted"]


@pytest.mark.parametrize("status", [404, 302])
def test_an_event_that_is_refused_holds_up_no_other(store, chat, status):
    happened(store, *STORY[:2])
    chat.answers = [status]
    assert told(store, chat) == 1
    assert chat.texts == ["Canary of tiny-1 on cpu-a: shifted"]


def test_two_senders_tell_nothing_twice(store, chat, monkeypatch):
    happened(store, *STORY[:1])
    real = outbox.message_of

    def while_another_comes(*args, **kwargs):
        monkeypatch.setattr(outbox, "message_of", real)
        assert told(store, chat) == 0
        return real(*args, **kwargs)

    monkeypatch.setattr(outbox, "message_of", while_another_comes)
    assert told(store, chat) == 1
    assert len(chat.texts) == 1


def test_nothing_that_goes_wrong_reaches_who_drives_the_canary_and_no_log_shows_the_url(store, caplog):
    happened(store, *STORY[:1])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    nobody = Connection(host="127.0.0.1", port=port, login="a@example.org", password="hush-hush")
    for url in (f"http://127.0.0.1:{port}/services/top-secret", "ftp://top-secret", "https://top secret/\r\n"):
        held = {"chat": Connection(password=url), "smtp_default": nobody}
        with caplog.at_level(logging.DEBUG):
            assert told_by(store, BY_CONNECTION, held.get, f"tiny-{len(url)}") == 0
            assert told_by(store, BY_CONNECTION, held.get) == 0
        shown = repr(held) + repr(list(channels(BY_CONNECTION, held.get)))
        assert "secret" not in shown
        assert "hush" not in shown
    store.write_document("releases/tiny-2/canary-cpu-a.json", {"not": "a record"}, None)
    assert told_by(store, BY_CONNECTION, held.get, "tiny-2") == 0
    assert "notification not sent" in caplog.text
    assert "top" not in caplog.text
    assert "hush" not in caplog.text


def test_text_of_others_is_no_markup_in_slack_and_shows_no_credentials(store, chat):
    happened(store, EventKind.PAUSED, summary="<!channel> & <http://evil|x> from https://me:pw@host/")
    assert told(store, chat) == 1
    sent = str(chat.messages[0])
    assert "&lt;!channel&gt; &amp; &lt;http://evil|x&gt;" in sent
    assert "pw" not in sent
    assert all(block["text"]["verbatim"] for block in chat.messages[0]["blocks"])


def test_a_pause_says_what_a_person_must_do(store):
    for kind in (EventKind.APPROVAL_ASKED, EventKind.PAUSED):
        text = message_about(kind).text()
        assert "`llm-pipeline approve-step tiny-1 cpu-a 5 [--deny]`" in text
    assert not message_about(EventKind.SHIFTED).action


def test_every_kind_of_event_is_about_something():
    kinds = {of_canary(Origin("here", "r"), event(kind), "cpu-a").kind for kind in EventKind}
    assert kinds == {"start", "step", "pause", "verdict", "rollback", "promotion"}
    assert kinds < FOR_PEOPLE


def test_an_email_says_the_same(store):
    happened(store, EventKind.PROMOTED)
    with mail_server() as received:
        extra = {"from_email": "llm@example.org", "disable_ssl": True, "disable_tls": True}
        held = {"smtp_default": Connection(host="127.0.0.1", port=received.port, extra=extra)}
        assert told_by(store, CONFIG, held.get) == 1
        assert told_by(store, CONFIG, held.get) == 0
    (mail,) = received.messages
    assert "Subject: Canary of tiny-1 on cpu-a: promoted" in mail
    assert "To: ops@example.org" in mail
    assert "Candidate's share: 5 %" in mail


def test_the_environment_holds_the_url_and_the_config_only_its_name(monkeypatch):
    monkeypatch.setenv("CHAT_WEBHOOK", " https://hooks.example.org/T0 \n")
    ((name, channel),) = channels(CONFIG)
    assert (name, channel.url) == ("webhook", "https://hooks.example.org/T0")
    monkeypatch.delenv("CHAT_WEBHOOK")
    assert not list(channels(CONFIG))
    with pytest.raises(ValidationError, match="give one of them"):
        READ({"chat": {"kind": "webhook", "variable": "A", "connection": "b"}})


def test_further_channels_have_names_of_their_own(store, chat, monkeypatch):
    further = {"kind": "webhook", "variable": "SECOND_WEBHOOK"}
    config = {**CONFIG, **READ({"second": further})}
    monkeypatch.setenv("SECOND_WEBHOOK", chat.url)
    happened(store, EventKind.PROMOTED)
    assert told(store, chat, config) == 2
    assert told(store, chat, config) == 0
    with pytest.raises(ValidationError, match="no notification of kind 'fax' is installed; kinds are: webhook, email"):
        READ({"second": {"kind": "fax"}})


@pytest.mark.parametrize("place", ["channels", "read_events", "message_of"])
def test_what_nobody_expected_stops_no_canary_and_only_its_place_is_logged(
    store, chat, caplog, place, monkeypatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(chat.url)

    happened(store, EventKind.STARTED)
    monkeypatch.setattr(outbox, place, fail)
    assert told(store, chat) == 0
    (record,) = caplog.records
    assert "raise RuntimeError(chat.url)" in record.llm_pipeline_fields["raised_at"]
    assert chat.url not in ReadableFormatter().format(record)
