"""What a client process does: it serves the parent that started it, through a socket, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import ClassVar

import uvloop

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.connection import Connections
from llm_pipeline.loadtest.client.messages import Share, Target
from llm_pipeline.loadtest.client.rows import Rows
from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.completions import header_secrets, shown

_ORPHANED = 1


async def serve(parent: Connection) -> None:
    """Send window after window, until the parent says no more.

    The parent says where to (`Target`), then for each window what (`Share`) and when it starts; each is answered with
    None as soon as the next may come, and a window with its rows and what failures said.

    Raises:
        EOFError: The parent has gone.
    """
    target: Target = parent.recv()
    sender, secrets = Sender(target), header_secrets(target.headers)
    parent.send(None)
    while True:
        said = asyncio.Event()
        with _on_readable(parent, said.set):  # connections that the server closes meanwhile are noticed
            await said.wait()
        await sender.prepare(parent.recv())
        with _no_garbage_collection():
            parent.send(None)
            start = parent.recv()
            with _on_readable(parent, os._exit, _ORPHANED):  # nothing is said during a window: readable means closed
                rows = await sender.run(start)
        hand_back(parent, rows, secrets)


@contextlib.contextmanager
def _on_readable(parent: Connection, call: Callable[..., object], *arguments: object) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_reader(parent.fileno(), call, *arguments)
    try:
        yield
    finally:
        loop.remove_reader(parent.fileno())
        os.set_blocking(parent.fileno(), True)  # libuv has made it non-blocking


def hand_back(parent: Connection, rows: Rows, secrets: Sequence[str]) -> None:
    """Give the parent the rows of a window, and what failures said, without the keys that were sent."""
    parent.send((rows.values(), {fault: shown(detail, secrets) for fault, detail in rows.details.items()}))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A full collection stops the client for tens of milliseconds, which would look like the server's latency."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _allow_many_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve_parent() -> None:
    """Serve the parent on stdin, which is a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _allow_many_connections()
    with contextlib.suppress(EOFError, ConnectionError):
        uvloop.run(serve(Connection(os.dup(sys.stdin.fileno()))))


_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_: ClassVar = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_: ClassVar = [("interval", _Timespec), ("value", _Timespec)]


class MonotonicTimer:
    """A timer of the kernel's (Linux timerfd) that becomes readable at a moment of CLOCK_MONOTONIC; one at a time.

    Event loops round their own timers to milliseconds, and polling the clock between them would burn the core that the
    answers are read on. Python has `os.timerfd_create` from 3.13 on; this is the same through libc.

    Attributes:
        descriptor: To wait for.

    Raises:
        OSError: The kernel has no timer left.
    """

    def __init__(self) -> None:
        self.descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._setting = _Setting()

    def wake_at(self, moment: float) -> None:
        """Become readable at `moment`, at once if it has passed.

        Raises:
            OSError: The kernel refuses.
        """
        seconds = int(moment)
        value = self._setting.value
        value.seconds, value.nanoseconds = seconds, int((moment - seconds) * 1e9)
        if _libc.timerfd_settime(self.descriptor, _ABSOLUTE, ctypes.byref(self._setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Be no longer readable."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


_SENT_AT_A_TURN = 16  # a client that is behind reads answers in between
_EXPIRY_SECONDS = 0.05
_SPARE_SECONDS = 0.05  # arrivals in this first time find connections open
_MOST_SPARE = 64
_monotonic = time.monotonic


class Sender:
    """One endpoint's connections, kept from window to window."""

    def __init__(self, target: Target) -> None:
        self._model, self._connections = target.model, Connections(target, self._ended)
        self._timer = MonotonicTimer()
        self._rows = Rows()
        self._share = Share(0, 1, (), None, 0, 0.0)
        self._numbered: Iterator[tuple[int, LoadRequest]] = iter(())
        self._next: tuple[int, LoadRequest, bytes] | None = None
        self._sent, self._start = 0, 0.0
        self._finished: asyncio.Future[None] | None = None

    async def prepare(self, share: Share) -> None:
        """Do what can be done before the window: find the server, and write down the first request."""
        self._share, self._rows, self._numbered, self._sent = share, Rows(), share.numbered(), 0
        self._advance()
        await self._connections.prepare(_spare_connections(share))

    async def run(self, start: float) -> Rows:
        """Send everything, and wait until each request has ended.

        Args:
            start: When the window starts, in CLOCK_MONOTONIC seconds.
        """
        loop = asyncio.get_running_loop()
        self._start, self._finished = start, loop.create_future()
        due = self._send_due if self._share.arrivals is not None else self._send_first_of_each_user
        loop.add_reader(self._timer.descriptor, due)
        self._wake()
        expiry = loop.create_task(self._expire())
        try:
            await self._finished
        finally:
            loop.remove_reader(self._timer.descriptor)
            expiry.cancel()
        return self._rows

    def _wake(self) -> None:
        if self._next is None:
            self._finish_if_done()
            return
        arrivals = self._share.arrivals
        self._timer.wake_at(self._start + (0.0 if arrivals is None else arrivals[self._sent]))

    def _send_due(self) -> None:
        self._timer.clear()
        arrivals, start = self._share.arrivals or (), self._start
        for _ in range(_SENT_AT_A_TURN):
            if self._next is None or _monotonic() < start + arrivals[self._sent]:
                break
            self._send(arrivals[self._sent])
        self._wake()

    def _send_first_of_each_user(self) -> None:
        self._timer.clear()
        for _ in range(self._share.users):
            self._send_of_user()
        self._finish_if_done()

    def _send_of_user(self) -> None:
        since = _monotonic() - self._start
        if since >= self._share.duration_seconds:
            self._next = None
        if self._next is not None:
            self._send(since)

    def _send(self, arrives_at: float) -> None:
        if self._next is None:
            return
        number, request, payload = self._next
        self._sent += 1
        sent_at = max(_monotonic(), self._start + arrives_at)
        answer = Answer(number, request, arrives_at, self._start, sent_at, model=self._model)
        self._connections.send(answer, payload)
        self._advance()

    def _advance(self) -> None:
        """Prepare the bytes of the next request before its time."""
        number, request = next(self._numbered, (0, None))
        self._next = None if request is None else (number, request, self._connections.payload(request))

    def _ended(self, answer: Answer) -> None:
        self._rows.add(answer)
        if self._share.arrivals is None:
            asyncio.get_running_loop().call_soon(self._next_of_user)
        else:
            self._finish_if_done()

    def _next_of_user(self) -> None:
        self._send_of_user()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        done = self._next is None and len(self._rows) == self._sent
        if done and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_SECONDS)
            self._connections.expire()


def _spare_connections(share: Share) -> int:
    wanted = share.users or math.ceil(len(share.requests) / share.duration_seconds * _SPARE_SECONDS)
    return max(1, min(wanted, _MOST_SPARE))
