"""Whatever a hub sends as an answer of its API or as an error, it is read within bounds."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub.utils import close_session, get_session

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.timed_connection import Deadline, TooSlow
from llm_pipeline.hub import bounded_answers
from llm_pipeline.hub.access import HubUnavailable, connect
from llm_pipeline.hub.hub_source import HubSource

sys.path.insert(0, str(Path(__file__).parents[1]))

from bare_socket import certificate, says, serving

MODEL = PinnedModel(id="demo/tiny", commit="0" * 40, files=())
FILE = HubFile(path="w.safetensors", size=10, sha256="0" * 64)


@contextmanager
def hub_that_answers(status: int, body: bytes, *, endless: bool = False, **headers: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if not endless:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
                while endless:
                    self.wfile.write(body)
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_answers, "LONGEST_ANSWER_BYTES", 1_000_000)
    monkeypatch.setattr(bounded_answers, "LONGEST_ERROR_BYTES", 100_000)


def ask(endpoint: str) -> None:
    hub = connect(endpoint, "LLM_PIPELINE_TEST_TOKEN")
    with hub.errors_at("demo/tiny"):
        hub.api.model_info("demo/tiny")


@pytest.mark.parametrize(("status", "limit"), [(200, 1_000_000), (500, 100_000), (404, 100_000)])
def test_an_answer_without_an_end_is_left_at_its_limit(status: int, limit: int) -> None:
    with (
        hub_that_answers(status, b" " * 65536, endless=True) as endpoint,
        pytest.raises(HubUnavailable, match=f"more than {limit} bytes"),
    ):
        ask(endpoint)


def test_the_error_body_of_a_file_is_bounded_too() -> None:
    with hub_that_answers(500, b" " * 65536, endless=True) as endpoint:
        source = HubSource(connect(endpoint, "LLM_PIPELINE_TEST_TOKEN"))
        with (
            pytest.raises(HubUnavailable, match="more than 100000 bytes"),
            source.open(MODEL, FILE, 0),
        ):
            pass


def test_a_file_may_be_longer_than_any_answer() -> None:
    with hub_that_answers(200, b"x" * 3_000_000) as endpoint:
        source = HubSource(connect(endpoint, "LLM_PIPELINE_TEST_TOKEN"))
        with source.open(MODEL, FILE, 0) as body:
            assert sum(len(chunk) for chunk in body.chunks) == 3_000_000


def test_a_compressed_answer_is_refused_before_it_is_unpacked() -> None:
    packed = gzip.compress(gzip.compress(b"\0" * 10_000_000))
    with (
        hub_that_answers(200, packed, Content_Encoding="gzip, gzip") as endpoint,
        pytest.raises(HubUnavailable, match="compressed"),
    ):
        ask(endpoint)


def test_an_answer_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_answers, "ANSWER_SECONDS", 0.0)
    with hub_that_answers(200, b"{}") as endpoint, pytest.raises(HubUnavailable, match="not complete after"):
        ask(endpoint)


def test_requests_of_others_in_the_process_are_left_alone() -> None:
    with hub_that_answers(200, b"x" * 3_000_000) as endpoint:
        with pytest.raises(HubUnavailable):
            ask(endpoint)
        assert len(get_session().get(endpoint).content) == 3_000_000


PAUSE = 0.02
DRIPPING_HEAD = says(b"HTTP/1.1 200 OK\r\n", b"X", pause=PAUSE, repeat_last=True)


@pytest.fixture
def fresh_session() -> Iterator[None]:
    close_session()
    yield
    close_session()


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_answers, "HEADERS_SECONDS", 0.2)


@pytest.mark.usefixtures("_soon")
def test_a_head_that_drips_is_left_at_its_deadline() -> None:
    with serving(DRIPPING_HEAD) as endpoint:
        with pytest.raises(HubUnavailable, match=r"head of the answer was not complete after 0\.2 s"):
            ask(endpoint)
        source = HubSource(connect(endpoint, "LLM_PIPELINE_TEST_TOKEN"))
        with pytest.raises(HubUnavailable, match="head of the answer"), source.open(MODEL, FILE, 0):
            pass


@pytest.mark.usefixtures("_soon", "fresh_session")
def test_a_head_that_drips_behind_tls_is_left_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, trusted = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with serving(DRIPPING_HEAD, tls=inside) as endpoint, pytest.raises(HubUnavailable, match="head of the answer"):
        ask(endpoint)


@pytest.mark.usefixtures("_soon", "fresh_session")
def test_a_proxy_that_drips_is_left_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(DRIPPING_HEAD) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(HubUnavailable, match="head of the answer"):
            ask("https://192.0.2.1")


def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", *[b"x"] * 10]
    with serving(says(*pieces, pause=PAUSE)) as endpoint:
        source = HubSource(connect(endpoint, "LLM_PIPELINE_TEST_TOKEN"))
        with source.open(MODEL, FILE, 0) as body:
            monkeypatch.setattr(Deadline, "seconds_left", Mock(side_effect=TooSlow("it is over")))
            assert b"".join(body.chunks) == b"x" * 10


@pytest.mark.usefixtures("_soon")
def test_heads_for_others_in_the_process_may_drip() -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 20, b"Content-Length: 2\r\n\r\nok"]
    with serving(DRIPPING_HEAD) as endpoint, pytest.raises(HubUnavailable):
        ask(endpoint)
    with serving(says(*pieces, pause=PAUSE)) as endpoint:
        assert get_session().get(endpoint).content == b"ok"
