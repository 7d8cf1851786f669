"""HTTP calls whose answers are bounded in bytes and in time, from the status line to the last byte of the body.

    answer = call("http://127.0.0.1:8002/metrics", seconds=2.0)
    answer.status, answer.body

Every read gets what is left of one deadline. Answers are never decompressed (none is asked for), and redirects are not
followed: the headers may hold a token.

Every plain HTTP call of this package at work goes through here. It is built on the standard library: httpx is not
installed with the light package, bounds each read alone, so that an answer that comes byte by byte never ends, and
takes three times as long to import. The load test and what shares its client use aiohttp for its speed; the hub and
clouds have the clients of their own libraries, with the same bounds.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llm_pipeline.base.timed_connection import AnswerTooLong, Deadline, TimedConnection

LONGEST_ANSWER_BYTES = 64 * 1024 * 1024
"""Far above every metrics page, statistics dump or query result that is read this way."""


@dataclass(frozen=True)
class HttpAnswer:
    """A whole answer, whatever its status.

    Attributes:
        status: HTTP status.
        body: All of the body, at most as many bytes as were allowed.
    """

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are none are replaced."""
        return self.body.decode(errors="replace")


def call(
    url: str,
    *,
    seconds: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    longest_bytes: int = LONGEST_ANSWER_BYTES,
    through_proxy: bool = False,
) -> HttpAnswer:
    """Send one request on a connection of its own and read the whole answer.

    Args:
        url: An http or https URL.
        seconds: Longest time for all of it.
        method: HTTP method.
        headers: Sent as they are.
        body: Sent as it is; None for none.
        tls: Context of a TLS connection; None for the system's certificates.
        longest_bytes: Longest body that is taken.
        through_proxy: Whether the environment's proxies count (HTTPS_PROXY, NO_PROXY): not for our own servers.

    Raises:
        AnswerTooLong: The body is longer than that.
        TimeoutError: The answer was not whole in time.
        OSError: Nobody answers, the answer broke off, or it is not HTTP.
        ValueError: The URL or a header cannot be sent.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("not an http or https URL")
    request = urllib.request.Request(url, body, dict(headers or {}), method=method)  # noqa: S310 - checked above
    deadline = Deadline(seconds)
    handlers: list[urllib.request.BaseHandler] = [_Http(deadline), _EveryStatus()]
    if url.startswith("https:"):
        handlers.append(_Https(deadline, tls or ssl.create_default_context()))
    if not through_proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=seconds) as answer:
            data = answer.read(longest_bytes + 1)
            if len(data) > longest_bytes:
                raise AnswerTooLong(f"the answer has more than {longest_bytes} bytes")
            if answer.length:  # a read of so many bytes does not tell by itself that the body broke off
                raise ConnectionError(f"the answer broke off {answer.length} bytes before its end")
            return HttpAnswer(answer.status, data)
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is not HTTP, or broke off: {type(error).__name__}") from error


class _HttpConnection(TimedConnection):
    def __init__(self, *arguments: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.deadline = deadline


class _HttpsConnection(_HttpConnection, http.client.HTTPSConnection):
    """The same over TLS: its socket is wrapped once the handshake is done."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._connect = partial(_HttpConnection, deadline=deadline)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: Deadline, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connect = partial(_HttpsConnection, deadline=deadline, context=context)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, req)


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Hands on every answer as it is: an error or a redirect is the caller's to judge."""

    def http_response(
        self,
        request: urllib.request.Request,  # noqa: ARG002 - of the base class
        response: http.client.HTTPResponse,
    ) -> http.client.HTTPResponse:
        return response

    https_response = http_response
