"""HTTP calls whose answers are bounded in bytes and in time, from connecting to the last byte of the body.

    answer = call("http://127.0.0.1:8002/metrics", seconds=2.0)
    answer.status, answer.body

Answers are never decompressed (none is asked for), and redirects are not followed: the headers may hold a token.

Every plain HTTP call of this package at work goes through here. The hub and clouds have the clients of their own
libraries, with the same bounds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

LONGEST_ANSWER_BYTES = 64 * 1024 * 1024
"""Far above every metrics page, statistics dump or query result that is read this way."""

_CHUNK_BYTES = 64 * 1024


class AnswerTooLong(OSError):
    """The other side sends more bytes than the caller takes."""


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
    """Send one request on a connection of its own and read the whole answer. The caller waits for it, a coroutine, too.

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
    import aiohttp  # it takes a while, and most processes make no call

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("not an http or https URL")
    proxy = getproxies().get(parts.scheme) if through_proxy and not proxy_bypass(parts.netloc) else None

    async def answered() -> HttpAnswer:
        async with (
            aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=seconds)) as session,
            session.request(
                method,
                url,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                data=body,
                ssl=tls or True,
                proxy=proxy,
                allow_redirects=False,
            ) as response,
        ):
            data = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                data += chunk
                if len(data) > longest_bytes:
                    raise AnswerTooLong(f"the answer has more than {longest_bytes} bytes")
            return HttpAnswer(response.status, bytes(data))

    try:
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a loop of its own
            return pool.submit(asyncio.run, answered()).result()
    except TimeoutError as error:
        raise TimeoutError(f"the answer was not complete after {seconds:g} s") from error
    except aiohttp.ClientError as error:
        if isinstance(error, (OSError, ValueError)):
            raise
        raise ConnectionError(f"the answer is not HTTP, or broke off: {type(error).__name__}") from error
