"""The canary's own traffic: it speaks where users are silent, and only there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llm_pipeline.canary import replay as replaying
from llm_pipeline.canary.replay import Replay
from llm_pipeline.config.endpoint import Endpoint


class Router(ThreadingHTTPServer):
    """Answers everybody, and counts like a router."""

    def __init__(self) -> None:
        self.count, self.users_per_look = 0, 0

        class Answer(BaseHTTPRequestHandler):
            def do_POST(answer) -> None:  # noqa: N805 - the library's name
                answer.rfile.read(int(answer.headers["content-length"]))
                self.count += 1
                answer.send_response(200)
                answer.end_headers()

            def log_message(answer, *_: object) -> None:  # noqa: N805
                pass

        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def attempts(self) -> int:
        self.count += self.users_per_look
        return self.count

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    monkeypatch.setattr(replaying, "_USERS_LOOK_SECONDS", 0.1)
    server = Router()
    yield server
    server.shutdown()
    server.server_close()


def replay(router: Router) -> Replay:
    return Replay(Endpoint(url=router.url), ["a", "b"], maximum_tokens=4, rate_per_second=50, attempts=router.attempts)


def until_sent(asking: Replay, count: int) -> None:
    deadline = time.monotonic() + 30
    while asking.sent_since(0.0) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_asks_where_users_are_silent_and_ends_with_its_block(router: Router) -> None:
    with replay(router) as asking:
        until_sent(asking, 20)
        assert asking.sent_since(time.time() + 60) == 0
    sent = asking.sent_since(0.0)
    time.sleep(0.2)
    assert asking.sent_since(0.0) == sent


def test_it_is_silent_while_users_send_as_much(router: Router) -> None:
    router.users_per_look = 12  # in the time of five requests of ours
    with replay(router) as asking:
        time.sleep(0.5)
        assert asking.sent_since(0.0) == 0
        router.users_per_look = 0
        until_sent(asking, 10)
        router.users_per_look = 12
        deadline = time.monotonic() + 30
        while asking._quiet:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        sent = asking.sent_since(0.0)
        time.sleep(0.3)
        assert asking.sent_since(0.0) <= sent + 1


def test_it_asks_where_the_router_does_not_tell(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "attempts", lambda: None)
    with replay(router) as asking:
        until_sent(asking, 10)
