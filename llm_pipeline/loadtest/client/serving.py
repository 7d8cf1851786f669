"""What a client process does: it serves the parent that started it, through pipes, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import uvloop

from llm_pipeline.loadtest.client.frames import Kind, read_frame, write_frame
from llm_pipeline.loadtest.client.rows import RowWriter
from llm_pipeline.loadtest.client.sender import Sender
from llm_pipeline.loadtest.client.share import Share
from llm_pipeline.loadtest.client.target import Target
from llm_pipeline.serving.protocols import header_secrets, without

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
        "details": {int(fault): without(detail, secrets) for fault, detail in rows.details.items()},
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
