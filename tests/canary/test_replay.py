"""The canary's own traffic: prompts that are sent while its block runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llm_pipeline.canary.replay import Replay
from llm_pipeline.config.endpoint import Endpoint


class Router(ThreadingHTTPServer):
    """Answers everybody."""

    def __init__(self) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_POST(answer) -> None:  # noqa: N805 - the library's name
                answer.rfile.read(int(answer.headers["content-length"]))
                answer.send_response(200)
                answer.end_headers()

            def log_message(answer, *_: object) -> None:  # noqa: N805
                pass

        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def router() -> Iterator[Router]:
    server = Router()
    yield server
    server.shutdown()
    server.server_close()


def replay(router: Router) -> Replay:
    return Replay(Endpoint(url=router.url), ["a", "b"], maximum_tokens=4, rate_per_second=50)


def until_sent(asking: Replay, count: int) -> None:
    deadline = time.monotonic() + 30
    while asking.sent_since(0.0) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_asks_until_its_block_ends(router: Router) -> None:
    with replay(router) as asking:
        until_sent(asking, 20)
        assert asking.sent_since(time.time() + 60) == 0
    sent = asking.sent_since(0.0)
    time.sleep(0.2)
    assert asking.sent_since(0.0) == sent
