"""Locks on files, held by one process of a host; the kernel frees them when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.waiting import wait_until

_PAUSE_SECONDS = 0.005


@contextlib.contextmanager
def flocked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, made if need be. Waits as long as another process holds it."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def flocked_within(path: Path, seconds: float, error: PipelineError) -> Iterator[None]:
    """Hold a lock on a file, made if need be. Waits so long at most, whatever its holder does; 0 does not wait.

    Raises:
        PipelineError: The given one: another process held it all the time.
    """

    def taken() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with _opened(path) as descriptor:
        if not wait_until(taken, seconds, every=_PAUSE_SECONDS):
            raise error
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child process that inherited the descriptor does not keep it
        os.close(descriptor)
