"""Locks on files, held for a moment by one process of a host; the kernel frees them when their holder dies.

A holder that is stopped (SIGSTOP, a debugger) keeps its lock, and whoever waits for it would wait for ever: it is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from llm_pipeline.base.detached import process_is_stopped
from llm_pipeline.base.errors import PipelineError, Transient

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
_STOPPED_SECONDS = 2.0
"""A holder that has been stopped for so long is not about to go on."""

_LOCK_FIELDS = 6


class HolderStopped(Transient):
    """The process that holds a lock is stopped."""

    def __init__(self, pid: int, where: str) -> None:
        hint = f"let it go on (kill -CONT {pid}) or end it (kill -KILL {pid}), then run this again"
        super().__init__(f"process {pid} holds the lock and is stopped", where=where, hint=hint)
        self.pid = pid


@contextlib.contextmanager
def flocked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, made if need be. Waits as long as a running process holds it.

    Raises:
        HolderStopped: Whoever holds it is stopped.
    """
    with _opened(path) as descriptor:
        _take(descriptor, path)
        yield


@contextlib.contextmanager
def flocked_within(path: Path, seconds: float, error: PipelineError) -> Iterator[None]:
    """Hold a lock on a file, made if need be. Waits so long at most, whatever its holder does; 0 does not wait.

    Raises:
        PipelineError: The given one: another process held it all the time.
    """
    deadline = time.monotonic() + seconds
    with _opened(path) as descriptor:
        pause = _SHORTEST_PAUSE_SECONDS
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                raise error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child process that inherited the descriptor does not keep it
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take(descriptor: int, path: Path) -> None:
    pause, stopped_since = _SHORTEST_PAUSE_SECONDS, None
    while not _taken(descriptor):
        if pause == _LONGEST_PAUSE_SECONDS:  # not for the moment that a lock is usually held
            pid, now = _stopped_holder(descriptor), time.monotonic()
            stopped_since = None if pid is None else stopped_since or now
            if pid is not None and stopped_since is not None and now - stopped_since >= _STOPPED_SECONDS:
                raise HolderStopped(pid, str(path))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _stopped_holder(descriptor: int) -> int | None:
    """The process that holds the lock of a file, if it can be seen from here and is stopped."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        held = Path("/proc/locks").read_text()
    except OSError:  # some containers have none
        return None
    locks = (fields for line in held.splitlines() if len(fields := line.split()) >= _LOCK_FIELDS)
    holders = (int(fields[4]) for fields in locks if fields[1] == "FLOCK" and fields[5] == file)
    return next(filter(process_is_stopped, holders), None)
