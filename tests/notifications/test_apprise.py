"""The channel `apprise`, through the real Apprise where the extra is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.config.notifications import Notifications
from llm_pipeline.notifications.channel import Connection, NotSent, Refused, channels, no_connections
from llm_pipeline.notifications.message import Message

sys.path.insert(0, str(Path(__file__).parent))

from message_servers import webhook_server

MESSAGE = Message("Build h100 of tiny-1: failed", (("What", "no memory"),), "To do: free some.", "critical")


def channel(connections=no_connections, **settings):
    config = TypeAdapter(Notifications).validate_python({"on_call": {"kind": "apprise", **settings}})
    return dict(channels(config, connections)).get("on_call")


def test_its_urls_stand_in_a_variable_or_a_connection_and_without_them_others_send() -> None:
    with pytest.raises(ValidationError, match="give one of them"):
        TypeAdapter(Notifications).validate_python({"on_call": {"kind": "apprise"}})
    assert channel(variable="NOT_SET_ANYWHERE") is None
    assert channel(connection="on_call") is None


def test_a_message_goes_to_each_service_with_its_severity_and_shows_no_url(monkeypatch, caplog) -> None:
    pytest.importorskip("apprise")
    with webhook_server() as received:
        url = received.url.replace("http://", "json://")
        monkeypatch.setenv("ON_CALL", f"{url} {url}2")
        opened = channel(variable="ON_CALL")
        opened.send(MESSAGE)
        assert [(one["title"], one["type"]) for one in received.messages] == [(MESSAGE.title, "failure")] * 2
        assert "To do: free some." in received.messages[0]["message"]
        received.answers = [500, 500]
        with pytest.raises(NotSent) as error:
            opened.send(MESSAGE)
        assert "secret" not in repr(opened) + str(error.value) + caplog.text


def test_a_wrong_url_is_refused_and_not_shown(caplog) -> None:
    pytest.importorskip("apprise")
    opened = channel(lambda _: Connection(password="nothing-of-apprise://top-secret"), connection="on_call")
    with pytest.raises(Refused) as error:
        opened.send(MESSAGE)
    assert "secret" not in repr(opened) + str(error.value) + caplog.text
