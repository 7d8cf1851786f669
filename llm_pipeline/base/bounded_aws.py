"""Clients of Amazon's APIs, and of others like them, whose answers are bounded in bytes and in time.

    client = bound_answers(session.client("s3"))

botocore's read time-out counts from one byte to the next. Here the headers of an answer have a deadline, and so has an
answer that botocore reads as a whole (listings, errors), which is also bounded in bytes. Objects, whose size is known,
must come at a minimum rate, and what is sent must be taken at that rate. An answer that does not keep to this ends as
one whose connection broke: botocore asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from llm_pipeline.base.timed_connection import (
    MINIMUM_BYTES_PER_SECOND,
    RATE_WINDOW_SECONDS,
    Deadline,
    MinimumRate,
    TimedConnection,
)

_LONGEST_HEADERS_BYTES = 1024 * 1024


@dataclass(frozen=True)
class AnswerLimits:
    """What an answer may take.

    Attributes:
        headers_seconds: From the end of the request to the end of the answer's headers.
        whole_seconds: For the body of an answer that is read as a whole.
        posted_seconds: The same for a POST: S3 sends white space for minutes while it joins the parts of an upload.
        whole_bytes: Its longest body. A listing of 1,000 objects has about 500 kB.
        bytes_per_second: The lowest rate of requests, and of objects.
        window_seconds: The time over which that is measured.
    """

    headers_seconds: float = 60.0
    whole_seconds: float = 120.0
    posted_seconds: float = 600.0
    whole_bytes: int = 64 * 1024 * 1024
    bytes_per_second: int = MINIMUM_BYTES_PER_SECOND
    window_seconds: float = RATE_WINDOW_SECONDS


def bound_answers(client: Any, limits: AnswerLimits) -> Any:
    """The client itself, which has sent nothing yet, with bounds on whatever answers it from now on."""
    from botocore import awsrequest

    pools: dict[str, Any] = {
        "http": (awsrequest.AWSHTTPConnectionPool, awsrequest.AWSHTTPConnection),
        "https": (awsrequest.AWSHTTPSConnectionPool, awsrequest.AWSHTTPSConnection),
    }
    session = client._endpoint.http_session  # noqa: SLF001 - botocore has no public way to its connections
    for scheme, (pool, connection) in pools.items():
        bounded = type(connection.__name__, (_BoundedConnection, connection), {"limits": limits})
        session._pool_classes_by_scheme[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": bounded})  # noqa: SLF001
    return client


class _BoundedConnection(TimedConnection):
    limits: AnswerLimits

    def connect(self) -> None:
        self._begin()
        super().connect()

    def request(self, method: str, *arguments: Any, **options: Any) -> None:
        self._begin()
        self._whole_seconds = self.limits.posted_seconds if method == "POST" else self.limits.whole_seconds
        super().request(method, *arguments, **options)

    def _consume_headers(self, fp: IO[bytes]) -> None:
        """Read past `100 Continue`; botocore's own method never returns where the connection is closed after it."""
        while (line := fp.readline()) != b"\r\n":
            if not line:
                raise ConnectionResetError("the connection was closed in the head of an answer")

    def getresponse(self) -> Any:
        self.receiving = self._headers()
        response: Any = super().getresponse()
        self.receiving = self._rate()
        read = response.stream

        def read_whole(*arguments: Any, **options: Any) -> Iterator[bytes]:
            self.receiving = Deadline(self._whole_seconds, self.limits.whole_bytes)
            found: Iterator[bytes] = read(*arguments, **options)
            return found

        response.stream = read_whole  # of objects, botocore uses `read`
        return response

    def _begin(self) -> None:
        self.sending, self.receiving = self._rate(), self._headers()

    def _rate(self) -> MinimumRate:
        return MinimumRate(self.limits.bytes_per_second, self.limits.window_seconds)

    def _headers(self) -> Deadline:
        return Deadline(self.limits.headers_seconds, _LONGEST_HEADERS_BYTES, what="the head of the answer")
