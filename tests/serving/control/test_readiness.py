"""Waiting for a server's model: why it takes no requests yet is told, in few words and without secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control import await_model

SECRET = '5esame"0pen'
Serve = Callable[[int, bytes], Endpoint]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("GATE_KEY", SECRET)
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes) -> Endpoint:
        class Refusing(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Refusing))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return Endpoint(url=f"http://127.0.0.1:{servers[-1].server_port}", api_key_variable="GATE_KEY")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def refused(endpoint: Endpoint, kind: type[Exception] = Transient) -> str:
    with pytest.raises(kind) as told:
        await_model(endpoint, 0.0, lambda: None)
    return str(told.value)


def test_the_reason_of_a_server_that_does_not_become_ready_is_told(serve: Serve) -> None:
    body = json.dumps({"error": "model 'llm' is at capacity: out of GPU memory"}).encode()
    assert "not loaded within 0 s: HTTP 503: model 'llm' is at capacity: out of GPU memory" in refused(serve(503, body))


def test_a_server_that_gives_no_reason_is_told_by_its_status(serve: Serve) -> None:
    assert "HTTP 400: no reason given" in refused(serve(400, b""))


def test_a_server_that_is_not_there_is_told_as_such() -> None:
    assert "no server answers" in refused(Endpoint(url="http://127.0.0.1:9"))


def test_a_refused_access_has_the_servers_reason(serve: Serve) -> None:
    body = json.dumps({"message": "key expired yesterday"}).encode()
    assert "refuses access: HTTP 403: key expired yesterday" in refused(serve(403, body), ConfigError)


@pytest.mark.parametrize("before", [0, 280, 295, 299])
@pytest.mark.parametrize("as_json", [True, False])
def test_no_part_of_a_secret_is_told_wherever_the_reason_is_cut(serve: Serve, before: int, *, as_json: bool) -> None:
    text = "x" * before + SECRET + "y" * 5000
    said = refused(serve(401, json.dumps({"error": text}).encode() if as_json else text.encode()), ConfigError)
    assert "5es" not in said
    assert len(said) < 1000


def test_an_endless_reason_and_its_line_ends_stay_one_short_line(serve: Serve) -> None:
    said = refused(serve(500, b"first\nsecond\x1b[31m" + b"z" * 200_000))
    assert len(said) < 1000
    assert "\x1b" not in said
