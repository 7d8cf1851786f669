"""What a client process does: it serves the parent that started it, through pipes, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import uvloop

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.connection import Connections
from llm_pipeline.loadtest.client.messages import Kind, Share, Target, read_frame, write_frame
from llm_pipeline.loadtest.client.rows import RowWriter
from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.completions import header_secrets, shown

_ORPHANED = 1


async def serve(reads: int, writes: int) -> None:
    """Send window after window, until the parent says no more.

    Args:
        reads: Descriptor that the parent's frames come from.
        writes: Descriptor that ours go to.

    Raises:
        EOFError: The parent has gone.
    """
    _, target = read_frame(reads)
    sent_to = Target(**json.loads(target))
    sender, secrets = Sender(sent_to), header_secrets(sent_to.headers)
    loop = asyncio.get_running_loop()
    write_frame(writes, Kind.READY)
    while True:
        await _readable(reads)  # connections that the server closes meanwhile are noticed
        await sender.prepare(Share.decode(read_frame(reads)[1]))
        with _no_garbage_collection():
            write_frame(writes, Kind.READY)
            start = float(json.loads(read_frame(reads)[1]))
            loop.add_reader(reads, os._exit, _ORPHANED)  # nothing is said during a window: readable means closed
            before = time.process_time()
            rows = await sender.run(start)
            seconds = time.process_time() - before
            loop.remove_reader(reads)
        _hand_back(writes, rows, seconds, secrets)


async def _readable(descriptor: int) -> None:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
        os.set_blocking(descriptor, True)  # libuv has made it non-blocking


def _hand_back(writes: int, rows: RowWriter, processor_seconds: float, secrets: Sequence[str]) -> None:
    for block in rows.blocks():
        write_frame(writes, Kind.ROWS, block)
    rest = {
        "gap_counts": rows.gap_counts,
        "details": {int(fault): shown(detail, secrets) for fault, detail in rows.details.items()},
        "processor_seconds": processor_seconds,
    }
    write_frame(writes, Kind.REST, json.dumps(rest).encode())


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
    """Serve the parent on stdin and stdout; whatever is printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    writes = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _allow_many_connections()
    with contextlib.suppress(EOFError, BrokenPipeError):
        uvloop.run(serve(sys.stdin.fileno(), writes))


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
        self._rows = RowWriter()
        self._share = Share(0, 1, (), None, 0, 0.0)
        self._numbered: Iterator[tuple[int, LoadRequest]] = iter(())
        self._next: tuple[int, LoadRequest, bytes] | None = None
        self._sent, self._start = 0, 0.0
        self._finished: asyncio.Future[None] | None = None

    async def prepare(self, share: Share) -> None:
        """Do what can be done before the window: find the server, and write down the first request."""
        self._share, self._rows, self._numbered, self._sent = share, RowWriter(), share.numbered(), 0
        self._advance()
        await self._connections.prepare(_spare_connections(share))

    async def run(self, start: float) -> RowWriter:
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
        done = self._next is None and self._rows.count == self._sent
        if done and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_SECONDS)
            self._connections.expire()


def _spare_connections(share: Share) -> int:
    wanted = share.users or math.ceil(len(share.requests) / share.duration_seconds * _SPARE_SECONDS)
    return max(1, min(wanted, _MOST_SPARE))
