"""The client against an HTTP server that says what Airflow says while its database is locked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.demo import local_airflow
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient


class Airflow:
    """Answers so many calls with 500, each but the login."""

    def __init__(self) -> None:
        self.locked, self.calls = 0, list[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                login = self.path == "/auth/token"
                fails = not login and outer.locked > 0
                if not login:
                    outer.locked -= 1
                    outer.calls.append(self.command)
                found = {"detail": {"reason": "Database error"}} if fails else {"access_token": "t", "dag_run_id": "r"}
                body = json.dumps(found).encode()
                self.send_response(500 if fails else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PATCH = do_POST = answer  # noqa: N815 - the names that http.server asks for

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def access(self) -> AirflowAccess:
        return AirflowAccess(f"http://127.0.0.1:{self.server.server_port}", "admin", "secret")


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    monkeypatch.setattr(local_airflow, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    found = Airflow()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_what_may_be_asked_twice_is_while_the_database_is_locked(airflow: Airflow) -> None:
    with AirflowClient(airflow.access) as client:
        airflow.locked = 2
        client.unpause("a")
    assert airflow.calls == ["PATCH"] * 3


def test_a_database_that_stays_locked_is_an_error(airflow: Airflow) -> None:
    with AirflowClient(airflow.access) as client:
        airflow.locked = 9
        with pytest.raises(ConfigError, match="answered 500 to PATCH"):
            client.unpause("a")
    assert airflow.calls == ["PATCH"] * 4


def test_a_run_is_never_triggered_twice(airflow: Airflow) -> None:
    with AirflowClient(airflow.access) as client:
        airflow.locked = 1
        with pytest.raises(ConfigError, match="answered 500 to POST"):
            client.trigger("a")
    assert airflow.calls == ["POST"]
