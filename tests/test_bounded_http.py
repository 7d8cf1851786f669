"""HTTP answers are bounded in bytes and in time, whatever the server does."""

from __future__ import annotations

import ssl
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_pipeline.base.bounded_http import AnswerTooLong, call

sys.path.insert(0, str(Path(__file__).parent))

from bare_socket import certificate, says, serving, tunnels


@contextmanager
def server(*pieces: bytes, pause: float = 0.0, repeat_last: bool = False, tls: ssl.SSLContext | None = None):
    """Sends these pieces to whoever connects, whatever was asked, then closes."""
    with serving(says(*pieces, pause=pause, repeat_last=repeat_last), tls=tls) as url:
        yield f"{url}/metrics"


HEAD = b"HTTP/1.1 200 OK\r\n"


def test_a_whole_answer_of_any_status_is_returned():
    with server(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy") as url:
        answer = call(url, seconds=5.0)
    assert (answer.status, answer.text) == (503, "busy")


def test_a_chunked_answer_is_returned_whole():
    with server(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") as url:
        assert call(url, seconds=5.0).body == b"abcde"


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


def test_a_silent_server_is_left_at_the_deadline():
    with server(b"", pause=1.0) as url, pytest.raises(OSError):
        call(url, seconds=0.2)


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


def test_compressed_bytes_are_never_unpacked():
    import gzip

    packed = gzip.compress(gzip.compress(b"\0" * 10_000_000))
    head = HEAD + b"Content-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with server(head + packed) as url:
        assert call(url, seconds=5.0).body == packed


def test_our_own_servers_are_not_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with server(HEAD + b"Content-Length: 2\r\n\r\nok") as url:
        assert call(url, seconds=5.0).body == b"ok"
    with pytest.raises(OSError):
        call("http://192.0.2.1/", seconds=1.0, through_proxy=True)


def test_only_http_is_spoken(tmp_path):
    with pytest.raises(ValueError, match="not an http"):
        call(f"file://{tmp_path}", seconds=1.0)


def test_a_server_behind_tls_is_held_to_the_deadline_too(tmp_path):
    inside, trusted = certificate(tmp_path)
    outside = ssl.create_default_context(cafile=trusted)
    with server(HEAD + b"Content-Length: 2\r\n\r\nok", tls=inside) as url:
        assert call(url, seconds=5.0, tls=outside).body == b"ok"
    with server(HEAD, b"X", pause=0.02, repeat_last=True, tls=inside) as url, pytest.raises(TimeoutError):
        call(url, seconds=0.5, tls=outside)


def test_a_proxy_that_drips_its_headers_is_left_at_the_deadline(monkeypatch):
    with server(HEAD, b"X", pause=0.02, repeat_last=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(OSError, match="was not complete"):
            call("https://192.0.2.1/", seconds=0.3, through_proxy=True)


def test_a_server_behind_a_proxy_s_tunnel_answers(tmp_path, monkeypatch):
    inside, trusted = certificate(tmp_path)
    outside = ssl.create_default_context(cafile=trusted)
    with serving(tunnels(says(HEAD + b"Content-Length: 2\r\n\r\nok"), inside)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        assert call("https://127.0.0.1:1/", seconds=5.0, tls=outside, through_proxy=True).body == b"ok"
