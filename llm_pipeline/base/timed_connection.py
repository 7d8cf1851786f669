"""Connections with a deadline, whatever the other side sends or takes.

The time-outs of Python's HTTP clients count from one byte to the next, so a server that sends a byte now and then
holds a caller for ever. Here every read and write gets what is left of one deadline.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class TooSlow(TimeoutError):
    """The other side has not sent, or taken, everything by now."""


class AnswerTooLong(OSError):
    """The other side sends more bytes than the caller takes."""


class Deadline:
    """A moment by which all must be over, so many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """The longest time that the next read or write may take, above 0.

        Raises:
            TooSlow: No time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0.0:
            raise TooSlow(f"the answer was not complete after {self._seconds:g} s")
        return left


class TimedConnection(http.client.HTTPConnection):
    """A connection of `http.client` that keeps to a deadline, with a proxy and over TLS, too.

    Connecting and TLS's handshake have a time-out of their own, which counts for all of it.
    """

    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _TimedSocket(self.sock, self.deadline)

    def _tunnel(self) -> None:
        """Ask a proxy for a tunnel, while the socket is not that of TLS yet."""
        plain = self.sock
        self.sock = _TimedSocket(plain, self.deadline)
        super()._tunnel()  # type: ignore[misc] # not in typeshed
        self.sock = plain


class _TimedSocket:
    """What HTTP clients use of a socket, within its connection's deadline."""

    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        self._socket = plain
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[_within(self._deadline, self._socket, partial(self._socket.send, view)) :]

    def makefile(self, _mode: str, buffering: int = -1) -> IO[bytes]:
        reader: Any = _TimedReader(self._socket, self._deadline)
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
    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        self._socket = plain
        self._deadline = deadline
        self._kept_open = plain.makefile("rb", buffering=0)  # while a body is read, though the connection is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return _within(self._deadline, self._socket, partial(self._socket.recv_into, buffer))

    def close(self) -> None:
        self._kept_open.close()
        super().close()


def _within(deadline: Deadline, plain: socket.socket, operation: Callable[[], int]) -> int:
    """Read or write once before a deadline; returns the number of bytes.

    To set a socket's time-out hands the interpreter to another thread, which costs more than most reads. So it is set
    again only once it is too long by a tenth, or much too short.
    """
    while True:
        left, timeout = deadline.seconds_left(), plain.gettimeout()
        if timeout is None or not left / 2 <= timeout <= 1.1 * left:
            plain.settimeout(left)
        with contextlib.suppress(TimeoutError):
            return operation()
