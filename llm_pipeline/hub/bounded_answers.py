"""The hub's answers are bounded: the client of `huggingface_hub` reads and unpacks whatever a server sends.

The headers of every answer have a deadline. The body of an answer of the hub's API, and of every error or redirect, has
one too, and a byte limit. Files have neither here: their size is pinned, and `Transfer` requires a minimum rate.
Compressed answers are refused: none is asked for, and a few bytes can unpack to gigabytes. Only our own requests are
concerned: the session is shared by all of the process.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import get_session

from llm_pipeline.base.timed_connection import Deadline, TooSlow

LIBRARY_NAME = "llm-pipeline"
"""How our requests name themselves in their user agent."""

UNPACKED = {"Accept-Encoding": "identity"}
"""Header of every request."""

LONGEST_ANSWER_BYTES = 64 * 1024 * 1024
"""Of the API. The listing of a repository with 100,000 files has about 30 MB."""

LONGEST_ERROR_BYTES = 1024 * 1024
HEADERS_SECONDS = 60.0
COMMIT_SECONDS = 600.0
"""For the answer to a commit: its request holds every small file, and the hub works on all of its files."""

ANSWER_SECONDS = 120.0
_FILE_ANSWER = "llm_pipeline_file"
_REDIRECT = 300

FILE_ANSWER: dict[str, Any] = {_FILE_ANSWER: True}
"""Extensions of a request whose answer is a file of known size."""

_http: Any = sys.modules[HTTPError.__module__.partition(".")[0]]  # httpx or httpx2, by the version of the client


class AnswerRefused(HTTPError):  # type: ignore[misc] # the client's libraries are untyped here
    """An answer that is too long, too slow or compressed."""


def bounded_session() -> Any:
    """The client's session, which bounds the answers to our requests from now on."""
    session = get_session()
    hooks = session.event_hooks
    if _bound not in hooks["response"]:
        for transport in (session._transport, *session._mounts.values()):  # noqa: SLF001 - of proxies
            if pool := getattr(transport, "_pool", None):  # else it is not the client's own
                pool._network_backend = _TimedNetwork(pool._network_backend)  # noqa: SLF001 - a constructor's argument
        session.event_hooks = {
            "request": [*hooks["request"], _expect_headers],
            "response": [headers_came, *hooks["response"], _bound],
        }
    return session


class _Expected(threading.local):
    """What a thread waits for: its requests, and the reads for them, are made in it."""

    headers: Deadline | None = None


_expected = _Expected()


def headers_came(_response: Any = None) -> None:
    """The headers that this thread waited for came, or will not come any more."""
    _expected.headers = None


def _expect_headers(request: Any) -> None:
    """Called with every request before it is sent."""
    seconds = COMMIT_SECONDS if "/commit/" in request.url.path else HEADERS_SECONDS
    _expected.headers = Deadline(seconds, what="the head of the answer") if _is_ours(request) else None


def _is_ours(request: Any) -> bool:
    return LIBRARY_NAME in request.headers.get("user-agent", "")


class _TimedNetwork:
    """A network backend of httpcore: no read begins once the headers that its thread waits for must have come."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def connect_tcp(self, *arguments: Any, **options: Any) -> _TimedStream:
        return _TimedStream(self._network.connect_tcp(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class _TimedStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if (deadline := _expected.headers) is not None:
            try:
                deadline.seconds_left()
            except TooSlow as error:
                raise AnswerRefused(str(error)) from error
        data: bytes = self._stream.read(max_bytes, timeout)
        return data

    def start_tls(self, *arguments: Any, **options: Any) -> _TimedStream:
        return _TimedStream(self._stream.start_tls(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _bound(response: Any) -> None:
    """Called with every answer before its body is read."""
    if not _is_ours(response.request):
        return
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding not in ("", "identity"):
        raise AnswerRefused(f"the answer is compressed ({encoding[:40]!r}), which was not requested")
    is_error = response.status_code >= _REDIRECT
    if is_error or not response.request.extensions.get(_FILE_ANSWER):
        response.stream = _BoundedStream(response.stream, LONGEST_ERROR_BYTES if is_error else LONGEST_ANSWER_BYTES)


class _BoundedStream(_http.SyncByteStream):  # type: ignore[misc]
    def __init__(self, stream: Any, longest_bytes: int) -> None:
        self._stream = stream
        self._longest_bytes = longest_bytes
        self._deadline = time.monotonic() + ANSWER_SECONDS

    def __iter__(self) -> Iterator[bytes]:
        taken = 0
        for chunk in self._stream:
            taken += len(chunk)
            if taken > self._longest_bytes:
                raise AnswerRefused(f"the answer has more than {self._longest_bytes} bytes")
            if time.monotonic() > self._deadline:
                raise AnswerRefused(f"the answer was not complete after {ANSWER_SECONDS:g} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()
