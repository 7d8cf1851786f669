"""Connections whose other side must keep up, in bytes and in time, whatever it sends or takes.

The time-outs of Python's HTTP clients count from one byte to the next, so a server that sends a byte now and then
holds a caller for ever. Here every read and write gets what is left of a limit: a deadline for what is short, a minimum
rate for what may be long.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MINIMUM_BYTES_PER_SECOND = 10_000
RATE_WINDOW_SECONDS = 60.0


class TooSlow(TimeoutError):
    """The other side did not send, or take, as much as it had to by now."""


class AnswerTooLong(OSError):
    """The other side sends more bytes than the caller takes."""


class Limit(Protocol):
    """How long the reads or the writes of a connection may take."""

    def seconds_left(self) -> float:
        """The longest time that the next one may take, above 0.

        Raises:
            TooSlow: No time is left.
        """
        ...

    def count(self, size: int, seconds: float) -> None:
        """Note that one moved so many bytes in that time; none where it ran out of time.

        Raises:
            TooSlow: These were too few.
            AnswerTooLong: These were too many.
        """
        ...


class Deadline:
    """All must be over by a moment, and within a number of bytes if one is given.

    Args:
        seconds: From now on.
        longest_bytes: At most so many; None for any number.
        what: What has this deadline, for messages.
    """

    def __init__(self, seconds: float, longest_bytes: int | None = None, *, what: str = "the answer") -> None:
        self._what = what
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._longest_bytes = longest_bytes
        self._bytes = 0

    def seconds_left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0.0:
            raise TooSlow(f"{self._what} was not complete after {self._seconds:g} s")
        return left

    def count(self, size: int, seconds: float) -> None:  # noqa: ARG002 - of the protocol
        self._bytes += size
        if self._longest_bytes is not None and self._bytes > self._longest_bytes:
            raise AnswerTooLong(f"{self._what} has more than {self._longest_bytes} bytes")


class MinimumRate:
    """In each window of time so many bytes a second must come or go; time that the caller takes does not count."""

    def __init__(
        self, bytes_per_second: int = MINIMUM_BYTES_PER_SECOND, window_seconds: float = RATE_WINDOW_SECONDS
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._window_seconds = window_seconds
        self._bytes, self._seconds = 0, 0.0

    def seconds_left(self) -> float:
        return self._window_seconds - self._seconds

    def count(self, size: int, seconds: float) -> None:
        self._bytes, self._seconds = self._bytes + size, self._seconds + seconds
        if self._seconds < self._window_seconds:
            return
        if self._bytes < self._bytes_per_second * self._seconds:
            raise TooSlow(f"{self._bytes} bytes in {self._seconds:.3g} s, fewer than {self._bytes_per_second} a second")
        self._bytes, self._seconds = 0, 0.0


class TimedConnection(http.client.HTTPConnection):
    """A connection of `http.client` (or, mixed in, of urllib3) that keeps to limits, with a proxy and over TLS, too.

    Connecting and TLS's handshake have a time-out of their own, which counts for all of it.

    Attributes:
        sending: For what is written.
        receiving: For what is read.
    """

    sending: Limit
    receiving: Limit

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _TimedSocket(self.sock, self)

    def _tunnel(self) -> None:
        """Ask a proxy for a tunnel, while the socket is not that of TLS yet."""
        plain = self.sock
        self.sock = _TimedSocket(plain, self)
        super()._tunnel()  # type: ignore[misc] # not in typeshed
        self.sock = plain


class _TimedSocket:
    """What HTTP clients use of a socket, within its connection's limits."""

    def __init__(self, plain: socket.socket, limits: TimedConnection) -> None:
        self._socket = plain
        self._limits = limits

    def sendall(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[_within(self._limits.sending, self._socket, partial(self._socket.send, view)) :]

    def makefile(self, _mode: str, buffering: int = -1) -> IO[bytes]:
        reader: Any = _TimedReader(self._socket, self._limits)
        return reader if buffering == 0 else io.BufferedReader(reader)

    def settimeout(self, seconds: float | None) -> None:
        """A client's own time-out, which counts from byte to byte, does not matter here."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, plain: socket.socket, limits: TimedConnection) -> None:
        self._socket = plain
        self._limits = limits
        self._kept_open = plain.makefile("rb", buffering=0)  # while a body is read, though the connection is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return _within(self._limits.receiving, self._socket, partial(self._socket.recv_into, buffer))

    def close(self) -> None:
        self._kept_open.close()
        super().close()


def _within(limit: Limit, plain: socket.socket, operation: Callable[[], int]) -> int:
    """Read or write once within the rest of a limit; returns the number of bytes.

    To set a socket's time-out hands the interpreter to another thread, which costs more than most reads. So it is set
    again only once it is too long by a tenth, or much too short.
    """
    while True:
        left, timeout = limit.seconds_left(), plain.gettimeout()
        if timeout is None or not left / 2 <= timeout <= 1.1 * left:
            plain.settimeout(left)
        began = time.monotonic()
        try:
            size = operation()
        except TimeoutError:
            limit.count(0, time.monotonic() - began)
        else:
            limit.count(size, time.monotonic() - began)
            return size


def passed_limit(error: BaseException) -> TooSlow | AnswerTooLong | None:
    """The limit that a client's error comes from; None if it has another cause."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TooSlow | AnswerTooLong):
        cause = cause.__cause__ or cause.__context__
    return cause
