"""HTTP answers are bounded in bytes and in time, whatever the server does."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
from bare_socket import says, serving

from llm_pipeline.base.bounded_http import AnswerTooLong, call


@contextmanager
def server(*pieces: bytes, pause: float = 0.0, repeat_last: bool = False):
    """Sends these pieces to whoever connects, whatever was asked, then closes."""
    with serving(says(*pieces, pause=pause, repeat_last=repeat_last)) as url:
        yield f"{url}/metrics"


HEAD = b"HTTP/1.1 200 OK\r\n"


def test_a_redirect_is_not_followed():
    with server(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n") as url:
        assert call(url, seconds=5.0).status == 302


@pytest.mark.parametrize(
    "head", [HEAD + b"\r\n", HEAD + b"Content-Length: 99999999999\r\n\r\n"], ids=["endless", "long"]
)
def test_a_body_beyond_the_cap_is_refused(head):
    with server(head, b"x" * 65536, repeat_last=True) as url, pytest.raises(AnswerTooLong, match="1000000 bytes"):
        call(url, seconds=5.0, longest_bytes=1_000_000)


@pytest.mark.parametrize(
    "first", [HEAD + b"Content-Length: 1000\r\n\r\n", HEAD, b"HTTP/1.1 200 O"], ids=["body", "headers", "status"]
)
def test_a_server_that_drips_bytes_is_left_at_the_deadline(first):
    with server(first, b"X", pause=0.02, repeat_last=True) as url:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            call(url, seconds=0.3)
    assert time.monotonic() - started < 30.0


@pytest.mark.parametrize(
    "broken",
    [
        HEAD + b"Content-Length: 10\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"\x16\x03\x01 not HTTP\r\n\r\n",
        HEAD + b"X: y\r\n" * 500 + b"\r\n",
        b"",
    ],
    ids=["short body", "short chunk", "no HTTP", "many headers", "nothing"],
)
def test_an_answer_that_breaks_off_or_is_no_http_is_an_os_error(broken):
    with server(broken) as url, pytest.raises(OSError):
        call(url, seconds=5.0)


def test_our_own_servers_are_not_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with server(HEAD + b"Content-Length: 2\r\n\r\nok") as url:
        assert call(url, seconds=5.0).body == b"ok"
    with pytest.raises(OSError):
        call("http://192.0.2.1/", seconds=1.0, through_proxy=True)
